// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/ranges.h"

#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rankprobe {
namespace {

// All members are kept in memory and sent, so "0-9999999999" must be a mistake.
constexpr int64_t kMaxNumber = 1000000;

bool ParseOne(absl::string_view text, int64_t* value) {
  // SimpleAtoi takes signs and blanks too.
  return !text.empty() && absl::c_all_of(text, absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, value) && *value <= kMaxNumber;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ParseRanges(absl::string_view flag,
                                                 absl::string_view text) {
  std::set<int64_t> values;
  if (text.empty()) return std::vector<int64_t>();
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(piece, '-');
    int64_t first = 0, last = 0;
    const bool good = ends.size() <= 2 && ParseOne(ends[0], &first) &&
                      ParseOne(ends.back(), &last) && first <= last;
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag, ": \"", piece,
          "\" is not a number or range like 4-6 within 0..", kMaxNumber));
    }
    for (int64_t v = first; v <= last; ++v) values.insert(v);
  }
  return std::vector<int64_t>(values.begin(), values.end());
}

std::string WhyNoRanges(const std::string& text) {
  return text.empty() ? "an empty list; leave the flag out for all" : "";
}

}  // namespace rankprobe
