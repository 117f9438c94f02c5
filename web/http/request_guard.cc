// SPDX-License-Identifier: Apache-2.0
#include "web/http/request_guard.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/same_bytes.h"

namespace rankprobe {
namespace {

constexpr char kInvalid[] = "INVALID_ARGUMENT";
constexpr char kDenied[] = "PERMISSION_DENIED";
constexpr char kUnauthenticated[] = "UNAUTHENTICATED";

std::vector<absl::string_view> ValuesOf(const RequestHead& head,
                                        absl::string_view name) {
  std::vector<absl::string_view> values;
  for (const auto& [field, value] : head.fields) {
    if (absl::EqualsIgnoreCase(field, name))
      values.push_back(absl::StripAsciiWhitespace(value));
  }
  return values;
}

bool OnlyValueIs(const RequestHead& head, absl::string_view name,
                 absl::string_view wanted) {
  const std::vector<absl::string_view> values = ValuesOf(head, name);
  return values.size() == 1 && values[0] == wanted;
}

// Whether a browser reports that the request comes from another site. "none"
// means an address that the user typed or opened. A link on another site may
// open the page, which is the same for all users, but nothing else.
bool ComesFromOtherSite(const RequestHead& head) {
  for (const absl::string_view site : ValuesOf(head, "Sec-Fetch-Site")) {
    if (site == "same-origin" || site == "none") continue;
    if (IsApi(head) || head.method != "GET" ||
        !OnlyValueIs(head, "Sec-Fetch-Mode", "navigate") ||
        !OnlyValueIs(head, "Sec-Fetch-Dest", "document")) {
      return true;
    }
  }
  return false;
}

bool IsJson(const RequestHead& head) {
  const std::vector<absl::string_view> types = ValuesOf(head, "Content-Type");
  if (types.size() != 1) return false;
  const absl::string_view type = absl::StripTrailingAsciiWhitespace(
      types[0].substr(0, types[0].find(';')));
  return absl::EqualsIgnoreCase(type, "application/json");
}

std::optional<Refusal> WhyUnknown(const RequestHead& head,
                                  const GuardRules& rules) {
  const std::optional<std::string> given = TokenOf(head);
  if (!rules.check_token) {
    if (given.has_value() && !rules.token.empty() &&
        SameBytes(*given, rules.token)) {
      return std::nullopt;
    }
    return Refusal{401, kUnauthenticated,
                   "the token of this page is missing or wrong: open the "
                   "address that `rankprobe view` printed"};
  }
  if (!given.has_value()) {
    return Refusal{401, kUnauthenticated,
                   "the authorization is not one bearer token"};
  }
  const absl::Status status = rules.check_token(*given);
  if (status.ok()) return std::nullopt;
  if (absl::IsPermissionDenied(status))
    return Refusal{403, kDenied, std::string(status.message())};
  return Refusal{401, kUnauthenticated, std::string(status.message())};
}

}  // namespace

bool IsApi(const RequestHead& head) {
  return absl::StartsWith(head.path, "/api/");
}

std::optional<std::string> TokenOf(const RequestHead& head) {
  const std::vector<absl::string_view> values = ValuesOf(head, "Authorization");
  if (values.empty()) return "";
  absl::string_view given = values[0];
  if (values.size() != 1 || !absl::ConsumePrefix(&given, "Bearer "))
    return std::nullopt;
  return std::string(given);
}

std::optional<Refusal> WhyRefused(const RequestHead& head,
                                  const GuardRules& rules) {
  const std::vector<absl::string_view> hosts = ValuesOf(head, "Host");
  if (hosts.size() != 1)
    return Refusal{400, kInvalid, "a request names one Host"};
  const std::string host = absl::AsciiStrToLower(hosts[0]);
  if (!absl::c_linear_search(rules.hosts, host)) {
    return Refusal{403, kDenied,
                   absl::StrCat("this server answers to ",
                                absl::StrJoin(rules.hosts, " and "),
                                " only; a port that is forwarded keeps its "
                                "number")};
  }
  for (const absl::string_view origin : ValuesOf(head, "Origin")) {
    if (!absl::EqualsIgnoreCase(origin,
                                absl::StrCat(rules.scheme, "://", host)))
      return Refusal{403, kDenied,
                     "the request comes from a page of another site"};
  }
  if (ComesFromOtherSite(head))
    return Refusal{403, kDenied,
                   "the request comes from a page of another site"};
  if (head.method != "GET" && head.method != "POST")
    return Refusal{405, "UNIMPLEMENTED", "GET and POST only"};
  if (head.path.empty() || head.path[0] != '/')
    return Refusal{400, kInvalid, "the target is not a path"};
  if (IsApi(head)) {
    if (auto refusal = WhyUnknown(head, rules)) return refusal;
  }
  if (head.method == "POST" && !IsJson(head))
    return Refusal{415, kInvalid, "a body is application/json"};
  return std::nullopt;
}

}  // namespace rankprobe
