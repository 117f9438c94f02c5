// SPDX-License-Identifier: Apache-2.0
#include "common/base/collector_address.h"

#include <sys/un.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/host_port.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kFile = "unix:";
constexpr absl::string_view kAbstract = "unix-abstract:";
// A path in the file system needs a terminating zero byte, an abstract name a
// leading one.
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

}  // namespace

bool IsUnixAddress(absl::string_view address) {
  return absl::StartsWith(address, kFile) ||
         absl::StartsWith(address, kAbstract);
}

absl::StatusOr<UnixAddress> ParseUnixAddress(absl::string_view text) {
  absl::string_view path = text;
  const bool is_abstract = absl::ConsumePrefix(&path, kAbstract);
  const bool is_one = is_abstract || absl::ConsumePrefix(&path, kFile);
  if (!is_one || path.empty() || path.size() > kMaxPathBytes ||
      std::any_of(path.begin(), path.end(), [](unsigned char c) {
        return absl::ascii_iscntrl(c) || c == ',';
      })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address \"", text,
        "\" is not unix:PATH (or unix-abstract:NAME) with 1 to ", kMaxPathBytes,
        " bytes, no commas and no control characters"));
  }
  return UnixAddress{std::string(path), is_abstract};
}

absl::Status CheckCollectorAddress(absl::string_view address) {
  return IsUnixAddress(address)
             ? ParseUnixAddress(address).status()
             : ParseHostPort(address, /*min_port=*/1).status();
}

std::string WhyNotReached(absl::string_view text) {
  if (absl::StrContains(text, "Connection refused"))
    return "nothing listens there";
  if (absl::StrContains(text, "onnect") &&
      absl::StrContains(text, "No such file or directory"))
    return "there is no such socket";
  if (absl::StrContains(text, "before receiving SETTINGS"))
    return "what listens there does not answer";
  if (absl::StrContains(text, "DNS resolution failed") ||
      absl::StrContains(text, "Domain name not found"))
    return "the name of the host is not known";
  return std::string(text);
}

std::string GrpcTarget(absl::string_view address) {
  if (!IsUnixAddress(address)) return std::string(address);
  const size_t scheme = address.find(':') + 1;
  std::string target(address.substr(0, scheme));
  for (const unsigned char c : address.substr(scheme)) {
    if (absl::ascii_isalnum(c) || absl::StrContains("/._-~", c)) {
      target.push_back(static_cast<char>(c));
    } else {
      absl::StrAppendFormat(&target, "%%%02X", c);
    }
  }
  return target;
}

}  // namespace rankprobe
