// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/numbers.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {

std::function<std::string(const std::string&)> NumberWithin(double min,
                                                            double max) {
  return [min, max](const std::string& text) -> std::string {
    double value = 0;
    // This form of the condition excludes nan.
    if (absl::SimpleAtod(text, &value) && value >= min && value <= max)
      return "";
    return absl::StrCat("\"", text, "\" is not a number from ", min, " to ",
                        max);
  };
}

std::function<std::string(const std::string&)> IntegerWithin(int64_t min,
                                                             int64_t max) {
  return [min, max](const std::string& text) -> std::string {
    int64_t value = 0;
    const bool digits =
        !text.empty() && absl::c_all_of(text, absl::ascii_isdigit);
    if (digits && absl::SimpleAtoi(text, &value) && value >= min &&
        value <= max)
      return "";
    return absl::StrCat("\"", text, "\" is not an integer from ", min, " to ",
                        max);
  };
}

}  // namespace rankprobe
