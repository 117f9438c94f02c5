// SPDX-License-Identifier: Apache-2.0
// Who may ask a server on this machine: the page that it served itself, and
// programs that know its token. Pages of other sites in the same browser reach
// the port too, by their own name for 127.0.0.1 (DNS rebinding) or by plain
// requests across sites; they are told apart here, before a body is read. Pure.
#ifndef RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_
#define RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

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
};

struct Refusal {
  int status = 0;
  const char* code = "";
  std::string message;
};

// Nothing: the request may go on.
std::optional<Refusal> WhyRefused(const RequestHead& head,
                                  const GuardRules& rules);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_REQUEST_GUARD_H_
