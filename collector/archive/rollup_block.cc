// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup_block.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/numeric/bits.h"
#include "common/base/little_endian.h"

namespace rankprobe {
namespace {

// On disk a statistic is its number here.
static_assert(kMax == 0 && kMin == 1 && kMean == 2 && kNorm == 3 &&
              kNanCount == 4 && kInfCount == 5 && kZeroCount == 6 && kStd == 7);
constexpr uint8_t kWideColumn = 0x80;
constexpr size_t kColumnHead = 1 + 8;

bool FitsFloat(double value) {
  if (!std::isfinite(value)) return true;
  if (std::abs(value) > std::numeric_limits<float>::max()) return false;
  return static_cast<double>(static_cast<float>(value)) == value;
}

// Of a width that the compiler sees: a query reads millions.
double ReadNumber(const char* bytes, bool wide) {
  return wide ? std::bit_cast<double>(GetLittleEndian({bytes, 8}))
              : std::bit_cast<float>(
                    static_cast<uint32_t>(GetLittleEndian({bytes, 4})));
}

}  // namespace

void RollupBlockWriter::Put(uint32_t slot, Stat stat, double value) {
  columns_[stat].present |= uint64_t{1} << slot;
  columns_[stat].values[slot] = value;
}

std::string RollupBlockWriter::Encode() const {
  std::string out;
  for (size_t stat = 0; stat < kStatCount; ++stat) {
    const Column& column = columns_[stat];
    if (column.present == 0) continue;
    bool wide = false;
    for (uint64_t left = column.present; left != 0; left &= left - 1)
      wide = wide || !FitsFloat(column.values[absl::countr_zero(left)]);
    out.push_back(static_cast<char>(stat | (wide ? kWideColumn : 0)));
    AppendLittleEndian(column.present, &out);
    for (uint64_t left = column.present; left != 0; left &= left - 1) {
      const double value = column.values[absl::countr_zero(left)];
      if (wide) {
        AppendLittleEndian(std::bit_cast<uint64_t>(value), &out);
      } else {
        AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(value)),
                           &out);
      }
    }
  }
  return out;
}

absl::Status DecodeRollupBlock(absl::string_view bytes, Stat stat,
                               RollupColumn* column) {
  column->present = 0;
  while (!bytes.empty()) {
    if (bytes.size() < kColumnHead)
      return absl::DataLossError("a block of a rollup ends early");
    const auto kind = static_cast<uint8_t>(bytes[0]);
    const auto present = GetLittleEndian(bytes.substr(1, 8));
    const size_t width = (kind & kWideColumn) != 0 ? 8 : 4;
    const size_t size =
        kColumnHead + width * static_cast<size_t>(absl::popcount(present));
    if (bytes.size() < size)
      return absl::DataLossError("a block of a rollup ends early");
    if ((kind & ~kWideColumn) == stat) {
      column->present = present;
      const char* at = bytes.data() + kColumnHead;
      for (uint64_t left = present; left != 0; left &= left - 1, at += width) {
        column->values[static_cast<size_t>(absl::countr_zero(left))] =
            ReadNumber(at, width == 8);
      }
      return absl::OkStatus();
    }
    bytes.remove_prefix(size);
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
