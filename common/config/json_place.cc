// SPDX-License-Identifier: Apache-2.0
#include "common/config/json_place.h"

#include <algorithm>

namespace rankprobe {
namespace {

// Walks over a valid document without building a tree, because RapidJSON's tree
// does not keep the places.
class Walk {
 public:
  explicit Walk(absl::string_view json) : json_(json) {}

  // Returns the offset of the key, starting from the value at or after `at`.
  std::optional<size_t> Find(size_t at, absl::string_view path) const {
    at = Blank(at);
    if (at >= json_.size()) return std::nullopt;
    if (json_[at] == '[') {
      for (at = Blank(at + 1); at < json_.size() && json_[at] != ']';
           at = Next(Skip(at))) {
        if (const auto found = Find(at, path)) return found;
      }
      return std::nullopt;
    }
    if (json_[at] != '{') return std::nullopt;
    const size_t dot = path.find('.');
    const absl::string_view name = path.substr(0, dot);
    for (at = Blank(at + 1); at < json_.size() && json_[at] == '"';) {
      const size_t key = at;
      at = Skip(key);
      const absl::string_view found = json_.substr(key + 1, at - key - 2);
      const size_t value = Blank(Blank(at) + 1);
      // A key may contain dots.
      if (found == path) return key;
      if (found == name && dot != absl::string_view::npos)
        return Find(value, path.substr(dot + 1));
      at = Next(Skip(value));
    }
    return std::nullopt;
  }

 private:
  size_t Blank(size_t at) const {
    const size_t found = json_.find_first_not_of(" \t\r\n", at);
    return std::min(found, json_.size());
  }
  // The offset after the comma, if there is one.
  size_t Next(size_t at) const {
    at = Blank(at);
    return at < json_.size() && json_[at] == ',' ? Blank(at + 1) : at;
  }
  // The offset after the value or key at `at`.
  size_t Skip(size_t at) const {
    int depth = 0;
    bool in_string = false;
    for (; at < json_.size(); ++at) {
      const char c = json_[at];
      if (in_string) {
        if (c == '\\') ++at;
        if (c == '"') in_string = false;
        if (c == '"' && depth == 0) return at + 1;
        continue;
      }
      if (c == '"') in_string = true;
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) return at + 1;
    }
    return json_.size();
  }

  const absl::string_view json_;
};

}  // namespace

TextPlace PlaceOfByte(absl::string_view text, size_t byte) {
  TextPlace place;
  for (const char c : text.substr(0, byte)) {
    if (c == '\n') {
      ++place.line;
      place.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) {
      ++place.column;
    }
  }
  return place;
}

std::optional<TextPlace> PlaceOfKey(absl::string_view json,
                                    absl::string_view path) {
  const std::optional<size_t> byte = Walk(json).Find(0, path);
  if (!byte.has_value()) return std::nullopt;
  return PlaceOfByte(json, *byte);
}

}  // namespace rankprobe
