// SPDX-License-Identifier: Apache-2.0
// A number with the word that it counts, for people. Pure.
#ifndef RANKPROBE_COMMON_TEXT_COUNTED_H_
#define RANKPROBE_COMMON_TEXT_COUNTED_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

// "1 row", "3 rows".
template <typename Number>
std::string Counted(Number count, absl::string_view one) {
  return absl::StrCat(count, " ", one, count == Number{1} ? "" : "s");
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_COUNTED_H_
