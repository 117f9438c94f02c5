// SPDX-License-Identifier: Apache-2.0
#include "common/records/request_names.h"

#include "absl/strings/strip.h"

namespace rankprobe {

bool IsRequestMadeOf(absl::string_view name, absl::string_view id) {
  const auto begins = [id](absl::string_view text) {
    return absl::ConsumePrefix(&text, id) &&
           (text.empty() || text.front() == '-');
  };
  for (const absl::string_view prefix : {"cmpl-", "chatcmpl-"}) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, prefix) && begins(rest)) return true;
  }
  return begins(name);
}

}  // namespace rankprobe
