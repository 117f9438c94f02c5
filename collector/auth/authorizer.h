// SPDX-License-Identifier: Apache-2.0
// Authorization of calls by method. One rule for all services: the role that a
// method requires is the option `access` of its descriptor
// (proto/rankprobe/v1/access.proto); a method without one, or an unknown one,
// requires an operator.
//
// Ownership: one per server; it owns the TokenTable. Thread-safe: immutable.
// Failure: UNAUTHENTICATED (no or a wrong token), PERMISSION_DENIED (role).
#ifndef RANKPROBE_COLLECTOR_AUTH_AUTHORIZER_H_
#define RANKPROBE_COLLECTOR_AUTH_AUTHORIZER_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/auth/token_table.h"

namespace rankprobe {

// What a caller presents to prove its identity.
struct Credentials {
  // Value of the `authorization` header; absent if there is none.
  std::optional<std::string> authorization;
  // The URI and common name of a verified client certificate, if any.
  std::string certificate_uri;
  std::string certificate_name;
};

class Authorizer {
 public:
  // If `tokens` is absent and client certificates are not requested, every
  // client that can connect is an operator and an agent.
  Authorizer(std::optional<TokenTable> tokens, bool client_certificates)
      : tokens_(std::move(tokens)), client_certificates_(client_certificates) {}

  bool open() const { return !tokens_.has_value() && !client_certificates_; }

  // Identifies the caller by its token if there is one, else by its
  // certificate, whose URI must be "rankprobe:ROLE".
  absl::StatusOr<Principal> Identify(const Credentials& credentials) const;

  // OK for operators. For arguments of a viewer's method that require an
  // operator.
  absl::Status CheckOperator(const Credentials& credentials,
                             absl::string_view what) const;

  // Returns among how many agents --max-sessions is shared: the names of the
  // token file, and one for all certificates. 1 if the port is open.
  size_t CountAgents() const;

  // `path` is "/rankprobe.v1.ControlService/SetConfig".
  absl::StatusOr<Principal> Check(const Credentials& credentials,
                                  absl::string_view path) const;

 private:
  const std::optional<TokenTable> tokens_;
  const bool client_certificates_;
};

// Returns the role that a method requires; nullopt if it requires none.
std::optional<Role> NeededRole(absl::string_view path);

// Returns whether each call of the method is written to the audit log.
bool IsAudited(absl::string_view path);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_AUTHORIZER_H_
