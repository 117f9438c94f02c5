// SPDX-License-Identifier: Apache-2.0
#include "common/base/host_port.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rankprobe {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int min_port) {
  const size_t colon = text.rfind(':');
  HostPort out;
  if (colon != absl::string_view::npos && colon > 0 &&
      absl::SimpleAtoi(text.substr(colon + 1), &out.port) &&
      out.port >= min_port && out.port <= 65535) {
    out.host = std::string(text.substr(0, colon));
    const bool visible =
        std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return c > ' ' && c != 0x7f; });
    const bool bracketed =
        absl::StartsWith(out.host, "[") && absl::EndsWith(out.host, "]");
    if (visible && (bracketed || !absl::StrContains(out.host, ":"))) return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address \"", text, "\" is not HOST:PORT with a port ",
                   min_port, "..65535 (IPv6 in brackets, no blanks)"));
}

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost" || host == "[::1]") return true;
  const std::vector<absl::string_view> parts = absl::StrSplit(host, '.');
  if (parts.size() != 4 || parts[0] != "127") return false;
  for (const absl::string_view part : parts) {
    int number = -1;
    if (!absl::SimpleAtoi(part, &number) || number < 0 || number > 255)
      return false;
  }
  return true;
}

}  // namespace rankprobe
