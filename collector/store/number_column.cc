// SPDX-License-Identifier: Apache-2.0
#include "collector/store/number_column.h"

#include <array>
#include <bitset>
#include <cmath>
#include <limits>

#include "common/base/little_endian.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxHighBytes = 16;

// Returns the bits of an index into that many high bytes; a power of two, so
// that no index crosses a byte.
size_t IndexBits(size_t high_bytes) {
  return high_bytes <= 1 ? 0 : high_bytes == 2 ? 1 : high_bytes <= 4 ? 2 : 4;
}

size_t IndexBytes(size_t count, size_t high_bytes) {
  return (count * IndexBits(high_bytes) + 7) / 8;
}

}  // namespace

bool FitsFloat(double value) {
  if (!std::isfinite(value)) return true;
  return std::abs(value) <= std::numeric_limits<float>::max() &&
         static_cast<double>(static_cast<float>(value)) == value;
}

bool AppendNumbers(absl::Span<const uint64_t> numbers, size_t width,
                   std::string* out) {
  const auto high_byte = [&](uint64_t number) {
    return static_cast<size_t>(number >> (8 * (width - 1)) & 0xff);
  };
  std::bitset<256> seen;
  for (const uint64_t number : numbers) seen.set(high_byte(number));
  const size_t distinct = seen.count();
  const bool packed =
      distinct <= kMaxHighBytes &&
      1 + distinct + IndexBytes(numbers.size(), distinct) < numbers.size();
  if (!packed) {
    for (const uint64_t number : numbers)
      AppendLittleEndian(number, width, out);
    return false;
  }
  out->push_back(static_cast<char>(distinct));
  std::array<uint8_t, 256> index_of{};
  uint8_t next = 0;
  for (size_t byte = 0; byte < seen.size(); ++byte) {
    if (!seen[byte]) continue;
    out->push_back(static_cast<char>(byte));
    index_of[byte] = next++;
  }
  std::string indexes(IndexBytes(numbers.size(), distinct), '\0');
  const size_t bits = IndexBits(distinct);
  for (size_t i = 0; bits > 0 && i < numbers.size(); ++i) {
    const unsigned index = index_of[high_byte(numbers[i])];
    char& byte = indexes[i * bits / 8];
    byte = static_cast<char>(static_cast<unsigned char>(byte) |
                             index << (i * bits % 8));
  }
  out->append(indexes);
  for (const uint64_t number : numbers)
    AppendLittleEndian(number, width - 1, out);
  return true;
}

std::optional<NumberColumn> NumberColumn::Take(size_t count, size_t width,
                                               bool packed,
                                               absl::string_view* bytes) {
  NumberColumn column;
  column.count_ = count;
  column.width_ = width;
  size_t head = 0;
  if (packed) {
    if (bytes->empty()) return std::nullopt;
    const auto distinct = static_cast<unsigned char>(bytes->front());
    if (distinct == 0 || distinct > kMaxHighBytes) return std::nullopt;
    column.index_bits_ = IndexBits(distinct);
    column.high_bytes_ = bytes->data() + 1;
    column.indexes_ = column.high_bytes_ + distinct;
    const size_t indexes = IndexBytes(count, distinct);
    head = 1 + distinct + indexes;
    --width;
  }
  if (bytes->size() < head + width * count) return std::nullopt;
  column.numbers_ = bytes->data() + head;
  bytes->remove_prefix(head + width * count);
  return column;
}

bool NumberColumn::IsSound() const {
  const auto distinct = static_cast<size_t>(indexes_ - high_bytes_);
  for (size_t i = 0; index_bits_ > 0 && i < count_; ++i) {
    if (HighByteOf(i) >= distinct) return false;
  }
  return true;
}

}  // namespace rankprobe
