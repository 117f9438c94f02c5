// SPDX-License-Identifier: Apache-2.0
#include "common/records/request_names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace rankprobe {

bool IsRequestMadeOf(absl::string_view name, absl::string_view id) {
  const auto begins = [id](absl::string_view text) {
    return absl::ConsumePrefix(&text, id) &&
           (text.empty() || text.front() == '-');
  };
  // The index of one of several answers to one prompt.
  absl::string_view number = name;
  while (!number.empty() && absl::ascii_isdigit(number.front()))
    number.remove_prefix(1);
  if (number.size() < name.size() && absl::ConsumePrefix(&number, "_") &&
      IsRequestMadeOf(number, id))
    return true;
  for (const absl::string_view prefix : {"cmpl-", "chatcmpl-"}) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, prefix) && begins(rest)) return true;
  }
  return begins(name);
}

}  // namespace rankprobe
