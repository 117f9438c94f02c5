// SPDX-License-Identifier: Apache-2.0
// Representation of a value that a limit cuts. Pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_CUT_VALUE_H_
#define RANKPROBE_COMMON_RECORDS_CUT_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// A prefix of at most `bytes` bytes of UTF-8 that ends with a complete
// character.
inline absl::string_view Utf8Prefix(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xC0) == 0x80)
    --bytes;
  return text.substr(0, bytes);
}

inline void SetCut(absl::string_view type, uint64_t size, uint64_t kept,
                   absl::string_view limit, v1::Value* out) {
  v1::CutValue* const cut = out->mutable_cut();
  cut->set_type(std::string(type));
  cut->set_size(size);
  cut->set_kept(kept);
  cut->set_limit(std::string(limit));
}

// Stores the beginning of a text, at most kMaxTextBytes of it.
inline void SetCutText(absl::string_view type, absl::string_view text,
                       size_t bytes, absl::string_view limit, v1::Value* out) {
  const absl::string_view head =
      Utf8Prefix(text, bytes < kMaxTextBytes ? bytes : kMaxTextBytes);
  SetCut(type, text.size(), head.size(), limit, out);
  out->mutable_cut()->set_text(std::string(head));
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_CUT_VALUE_H_
