// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup_block.h"

#include <optional>

#include "absl/numeric/bits.h"
#include "common/base/little_endian.h"

namespace rankprobe {
namespace {

// These numbers are stored on disk.
static_assert(kMax == 0 && kMin == 1 && kMean == 2 && kNorm == 3 &&
              kNanCount == 4 && kInfCount == 5 && kZeroCount == 6 && kStd == 7);
constexpr uint8_t kWideColumn = 0x80, kPackedBlockColumn = 0x40;
constexpr size_t kColumnHead = 1 + 8;

}  // namespace

void RollupBlockWriter::Put(uint32_t slot, Stat stat, double value) {
  columns_[stat].present |= uint64_t{1} << slot;
  columns_[stat].values[slot] = value;
}

void RollupBlockWriter::EncodeColumn(size_t stat, const Column& column,
                                     std::string* out) {
  bool wide = false;
  for (uint64_t left = column.present; left != 0; left &= left - 1)
    wide = wide || !FitsFloat(column.values[absl::countr_zero(left)]);
  const size_t width = wide ? 8 : 4;
  std::array<uint64_t, kRollupBlockValues> numbers{};
  size_t count = 0;
  for (uint64_t left = column.present; left != 0; left &= left - 1)
    numbers[count++] = FloatBits(column.values[absl::countr_zero(left)], width);
  const size_t kind = out->size();
  out->push_back(static_cast<char>(stat | (wide ? kWideColumn : 0)));
  AppendLittleEndian(column.present, out);
  if (AppendNumbers({numbers.data(), count}, width, out))
    (*out)[kind] = static_cast<char>((*out)[kind] | kPackedBlockColumn);
}

void RollupBlockWriter::AppendTo(uint32_t block,
                                 std::vector<RollupColumnRow>* rows) const {
  for (size_t stat = 0; stat < kStatCount; ++stat) {
    if (columns_[stat].present == 0) continue;
    RollupColumnRow& row = rows->emplace_back();
    row.block = block;
    row.statistic = static_cast<uint8_t>(stat);
    EncodeColumn(stat, columns_[stat], &row.bytes);
  }
}

absl::StatusOr<RollupColumn> RollupColumn::Parse(absl::string_view row,
                                                 Stat stat) {
  const auto bad = [] {
    return absl::DataLossError("a block of a rollup cannot be read");
  };
  if (row.size() < kColumnHead) return bad();
  const auto kind = static_cast<uint8_t>(row[0]);
  if ((kind & ~(kWideColumn | kPackedBlockColumn)) != stat) return bad();
  RollupColumn out;
  out.present_ = GetLittleEndian(row.substr(1, 8));
  out.width_ = (kind & kWideColumn) != 0 ? 8 : 4;
  row.remove_prefix(kColumnHead);
  const std::optional<NumberColumn> numbers =
      NumberColumn::Take(static_cast<size_t>(absl::popcount(out.present_)),
                         out.width_, (kind & kPackedBlockColumn) != 0, &row);
  if (!numbers.has_value() || !numbers->IsSound() || !row.empty()) return bad();
  out.numbers_ = *numbers;
  return out;
}

double RollupColumn::At(uint32_t slot) const {
  const uint64_t below = (uint64_t{1} << slot) - 1;
  const uint64_t bits =
      numbers_.At(static_cast<size_t>(absl::popcount(present_ & below)));
  return FloatOf(bits, width_);
}

}  // namespace rankprobe
