// SPDX-License-Identifier: Apache-2.0
// Filter of the requests to a server: it accepts those of the page that the
// server served, and of programs that have a token. Pages of other sites in the
// same browser can also reach the port, with their own name for 127.0.0.1 (DNS
// rebinding) or with cross-site requests; it refuses these before a body is
// read. Pure.
#ifndef RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_
#define RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

// A request without its body, as it was sent.
struct RequestHead {
  std::string method;
  std::string path;
  // All header fields in their order; a name may appear several times.
  std::vector<std::pair<std::string, std::string>> fields;
};

struct GuardRules {
  // "127.0.0.1:8080", "localhost:8080"; in lower case.
  std::vector<std::string> hosts;
  // Required of every request below /api/.
  std::string token;
  // Used instead of `token` if there are several tokens: returns OK, or the
  // reason why a caller with this token ("" if there is none) may make no
  // request at all.
  std::function<absl::Status(absl::string_view token)> check_token;
  // Scheme of the addresses of this server's pages.
  std::string scheme = "http";
};

struct Refusal {
  int status = 0;
  const char* code = "";
  std::string message;
};

// Returns nullopt if the request is accepted.
std::optional<Refusal> WhyRefused(const RequestHead& head,
                                  const GuardRules& rules);

// Whether the path is below /api/.
bool IsApi(const RequestHead& head);

// Returns the token of the request's only `Authorization: Bearer`, "" if there
// is no such field, and nullopt if there are two or it has another form.
std::optional<std::string> TokenOf(const RequestHead& head);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_
