// SPDX-License-Identifier: Apache-2.0
// Columns of numbers of 4 or 8 bytes, lowest byte first, and a packed encoding
// of them (docs/storage.md, "Packed numbers"): the highest byte of a floating
// point number is its sign and most of its exponent, and the numbers of one
// column have few distinct ones. Plain values, one thread at a time.
#ifndef RANKPROBE_COLLECTOR_STORE_NUMBER_COLUMN_H_
#define RANKPROBE_COLLECTOR_STORE_NUMBER_COLUMN_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/little_endian.h"

namespace rankprobe {

// Returns whether a float32 represents `value` exactly, or it is not finite.
bool FitsFloat(double value);

// Converts a number to `width` bytes, 4 or 8, in which it fits, and back.
inline uint64_t FloatBits(double value, size_t width) {
  return width == 4 ? std::bit_cast<uint32_t>(static_cast<float>(value))
                    : std::bit_cast<uint64_t>(value);
}
inline double FloatOf(uint64_t bits, size_t width) {
  return width == 4 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                    : std::bit_cast<double>(bits);
}

// `width` is 4 or 8. Returns true if the numbers were packed, which is done if
// it is shorter.
bool AppendNumbers(absl::Span<const uint64_t> numbers, size_t width,
                   std::string* out);

// A view of bytes that outlive it.
class NumberColumn {
 public:
  // Takes the bytes of `count` numbers off the front of `bytes`; empty if there
  // are too few. The content is not validated: call IsSound before At.
  static std::optional<NumberColumn> Take(size_t count, size_t width,
                                          bool packed,
                                          absl::string_view* bytes);
  NumberColumn() = default;

  bool IsSound() const;
  uint64_t At(size_t index) const {
    if (high_bytes_ == nullptr) return Low(index * width_, width_);
    const size_t width = width_ - 1;
    return Low(index * width, width) |
           uint64_t{static_cast<unsigned char>(high_bytes_[HighByteOf(index)])}
               << (8 * width);
  }

 private:
  size_t HighByteOf(size_t index) const {
    if (index_bits_ == 0) return 0;
    const size_t bit = index * index_bits_;
    return static_cast<unsigned char>(indexes_[bit / 8]) >> (bit % 8) &
           ((1u << index_bits_) - 1);
  }
  uint64_t Low(size_t at, size_t width) const {
    return GetLittleEndian({numbers_ + at, width});
  }

  size_t count_ = 0, width_ = 0, index_bits_ = 0;
  // Null if the numbers are not packed.
  const char* high_bytes_ = nullptr;
  const char* indexes_ = nullptr;
  const char* numbers_ = nullptr;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_NUMBER_COLUMN_H_
