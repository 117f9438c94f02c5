// SPDX-License-Identifier: Apache-2.0
// Decides which caller may call which method. One rule for all services: the
// role that a method needs is the option `access` of its descriptor
// (proto/rankprobe/v1/access.proto); a method without one, or of nobody's,
// needs an operator.
//
// Ownership: one per server; the TokenTable is its own. Thread-safe: immutable.
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

// What a call brings to prove who makes it.
struct Credentials {
  // Value of the `authorization` header; absent when there is none.
  std::optional<std::string> authorization;
  // The URI and common name of a verified client certificate, if any.
  std::string certificate_uri;
  std::string certificate_name;
};

class Authorizer {
 public:
  // `tokens` absent and no client certificates asked for: everybody who can
  // connect is an operator and an agent.
  Authorizer(std::optional<TokenTable> tokens, bool client_certificates)
      : tokens_(std::move(tokens)), client_certificates_(client_certificates) {}

  bool open() const { return !tokens_.has_value() && !client_certificates_; }

  // A token, when there is one, decides; else the certificate, whose URI must
  // be "rankprobe:ROLE".
  absl::StatusOr<Principal> Identify(const Credentials& credentials) const;

  // OK for operators: for what an argument of a viewer's method asks for.
  absl::Status CheckOperator(const Credentials& credentials,
                             absl::string_view what) const;

  // Among how many agents --max-sessions is shared: the names of the token
  // file, and one for all certificates. 1 when the port is open.
  size_t CountAgents() const;

  // `path` is "/rankprobe.v1.ControlService/SetConfig".
  absl::StatusOr<Principal> Check(const Credentials& credentials,
                                  absl::string_view path) const;

 private:
  const std::optional<TokenTable> tokens_;
  const bool client_certificates_;
};

// The role that a method needs; nullopt: anybody.
std::optional<Role> NeededRole(absl::string_view path);

// Whether each call of the method is written to the audit log.
bool IsAudited(absl::string_view path);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_AUTHORIZER_H_
