// SPDX-License-Identifier: Apache-2.0
// Line and column of a value in the text of a JSON document. Pure functions.
#ifndef RANKPROBE_COMMON_CONFIG_JSON_PLACE_H_
#define RANKPROBE_COMMON_CONFIG_JSON_PLACE_H_

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Counted from 1; columns count characters, as editors do.
struct TextPlace {
  size_t line = 1;
  size_t column = 1;
};

TextPlace PlaceOfByte(absl::string_view text, size_t byte);

// Returns the place of the last key of `path`, "statistics.list". A list on the
// path is searched for its first object that has the next key. If a key occurs
// twice, the first counts, because the parser reads that one. Returns nullopt
// if there is no such key. `json` must be a valid document.
std::optional<TextPlace> PlaceOfKey(absl::string_view json,
                                    absl::string_view path);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_JSON_PLACE_H_
