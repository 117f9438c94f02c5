// SPDX-License-Identifier: Apache-2.0
// Integers as bytes, lowest first, whatever the processor's order. Pure.
#ifndef RANKPROBE_COMMON_BASE_LITTLE_ENDIAN_H_
#define RANKPROBE_COMMON_BASE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Writes sizeof(Bits) bytes to `out`.
template <typename Bits>
void PutLittleEndian(Bits bits, char* out) {
  static_assert(std::is_unsigned_v<Bits>);
  for (size_t i = 0; i < sizeof(bits); ++i)
    out[i] = static_cast<char>(bits >> (8 * i) & 0xff);
}

template <typename Bits>
void AppendLittleEndian(Bits bits, std::string* out) {
  char bytes[sizeof(bits)];
  PutLittleEndian(bits, bytes);
  out->append(bytes, sizeof(bytes));
}

// Appends the lowest `width` bytes, at most 8.
inline void AppendLittleEndian(uint64_t bits, size_t width, std::string* out) {
  char bytes[sizeof(bits)];
  PutLittleEndian(bits, bytes);
  out->append(bytes, width);
}

// The number in the first 8 of `bytes`, or in all if there are fewer.
inline uint64_t GetLittleEndian(absl::string_view bytes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < bytes.size() && i < sizeof(bits); ++i)
    bits |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return bits;
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_LITTLE_ENDIAN_H_
