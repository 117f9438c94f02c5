// SPDX-License-Identifier: Apache-2.0
#include "common/text/visible_text.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace rankprobe {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

uint8_t Byte(absl::string_view text, size_t at) {
  return static_cast<uint8_t>(text[at]);
}

// Decodes the first character of a text that is not empty.
Character Decode(absl::string_view text) {
  const uint8_t first = Byte(text, 0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0   ? 4
                       : first >= 0xe0 ? 3
                       : first >= 0xc2 ? 2
                                       : 0;
  if (bytes == 0 || first > 0xf4 || text.size() < bytes) return {first, 0};
  uint32_t code = first & (0xffU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    const uint8_t next = Byte(text, i);
    if ((next & 0xc0U) != 0x80) return {first, 0};
    code = code << 6 | (next & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff ||
      (code >= 0xd800 && code < 0xe000))
    return {first, 0};
  return {code, bytes};
}

bool Steers(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||  // C0, DEL, C1
         code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) ||  // lines, embedding, override
         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff ||
         (code >= 0xfff9 && code <= 0xfffb);
}

// Calls escape(character, its bytes) for characters that must not be shown.
template <typename Escape>
std::string Rewrite(absl::string_view text, Escape escape) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = Decode(text);
    const absl::string_view bytes = text.substr(0, c.bytes == 0 ? 1 : c.bytes);
    if (c.bytes != 0 && !Steers(c.code)) {
      out.append(bytes.data(), bytes.size());
    } else {
      escape(c, bytes, &out);
    }
    text.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace

std::string VisibleText(absl::string_view untrusted) {
  return Rewrite(untrusted,
                 [](Character c, absl::string_view, std::string* out) {
                   if (c.bytes > 1) {
                     absl::StrAppendFormat(out, "\\u%04x", c.code);
                   } else if (c.code == '\n') {
                     *out += "\\n";
                   } else if (c.code == '\r') {
                     *out += "\\r";
                   } else if (c.code == '\t') {
                     *out += "\\t";
                   } else {
                     absl::StrAppendFormat(out, "\\x%02x", c.code);
                   }
                 });
}

std::string VisibleJson(absl::string_view json) {
  return Rewrite(json,
                 [](Character c, absl::string_view bytes, std::string* out) {
                   // White space between tokens stays, and the reader rejects
                   // invalid UTF-8.
                   if (c.bytes == 0 || c.code < 0x20) {
                     out->append(bytes.data(), bytes.size());
                   } else {
                     absl::StrAppendFormat(out, "\\u%04x", c.code);
                   }
                 });
}

}  // namespace rankprobe
