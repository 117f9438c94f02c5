// SPDX-License-Identifier: Apache-2.0
// Line and column of a value in the text of a JSON document. Pure functions.
#ifndef RANKPROBE_COMMON_CONFIG_JSON_PLACE_H_
#define RANKPROBE_COMMON_CONFIG_JSON_PLACE_H_

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace rankprobe {

// From 1; columns count characters, as editors do.
struct TextPlace {
  size_t line = 1;
  size_t column = 1;
};

TextPlace PlaceOfByte(absl::string_view text, size_t byte);

// Of the key at the end of `path`, "statistics.list"; a list on the way stands
// for the first of its objects that has the next key. Of two keys alike the
// first, which is the one that is read. nullopt: there is none. `json` is a
// valid document.
std::optional<TextPlace> PlaceOfKey(absl::string_view json,
                                    absl::string_view path);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_JSON_PLACE_H_
