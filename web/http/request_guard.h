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
  // All header fields in their order; one name may be there several times.
  std::vector<std::pair<std::string, std::string>> fields;
};

struct GuardRules {
  // "127.0.0.1:8080", "localhost:8080"; in lower case.
  std::vector<std::string> hosts;
  // Of every request below /api/.
  std::string token;
  // In its place, where there are many: OK, or why who brings this one ("": none)
  // may ask for nothing at all.
  std::function<absl::Status(absl::string_view token)> check_token;
  // What the address of a page of this server begins with.
  std::string scheme = "http";
};

struct Refusal {
  int status = 0;
  const char* code = "";
  std::string message;
};

// Nothing: the request may go on.
std::optional<Refusal> WhyRefused(const RequestHead& head,
                                  const GuardRules& rules);

// Whether the path is below /api/.
bool IsApi(const RequestHead& head);

// What the one `Authorization: Bearer` of the request brings; "" if it brings
// nothing. Nothing: there are two, or it is something else.
std::optional<std::string> TokenOf(const RequestHead& head);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_
