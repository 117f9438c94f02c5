// SPDX-License-Identifier: Apache-2.0
#include "collector/store/step_summary.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/numeric/bits.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Numbers of the columns on disk. Each extreme is followed by its count and the
// number of values that are not finite.
enum SummaryField : uint8_t {
  kFirstStep,
  kLastStep,
  kSteps,
  kIncomplete,
  kDeleted,
  kMade,
  kValues,
  kNormValue,
  kMaxValue = kNormValue + 3,
  kMinValue = kMaxValue + 3,
  // Only in rows with heads.
  kRecords = kMinValue + 3,
  kLayout,
  kSummaryFields
};
// The first byte of a row.
constexpr char kTileKind = 2, kTileWithHeadsKind = 3;
constexpr uint8_t kConstantColumn = 0x10, kFloatColumn = 0x20,
                  kPackedTileColumn = 0x40;
// Kind and mask; field and kind.
constexpr size_t kTileHead = 1 + 8, kTileColumnHead = 2;

using TileColumn = std::array<double, kTileSlots>;

bool IsNumberField(size_t field) {
  return field == kNormValue || field == kMaxValue || field == kMinValue;
}

// Compares bit by bit: a NaN equals itself, 0 is not -0.
bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

void AppendTileColumn(uint8_t field, const TileColumn& values, size_t count,
                      std::string* out) {
  bool constant = true, zero = true, narrow = true;
  double largest = 0;
  for (size_t i = 0; i < count; ++i) {
    constant = constant && SameBits(values[i], values[0]);
    zero = zero && SameBits(values[i], 0);
    narrow = narrow && FitsFloat(values[i]);
    if (values[i] > largest) largest = values[i];
  }
  if (zero) return;
  const bool floating = IsNumberField(field);
  const size_t width = floating           ? (narrow ? 4 : 8)
                       : largest < 0x1p8  ? 1
                       : largest < 0x1p16 ? 2
                       : largest < 0x1p32 ? 4
                                          : 8;
  out->push_back(static_cast<char>(field));
  const size_t kind = out->size();
  out->push_back(static_cast<char>(width | (constant ? kConstantColumn : 0) |
                                   (floating ? kFloatColumn : 0)));
  const size_t said = constant ? 1 : count;
  if (!floating) {
    for (size_t i = 0; i < said; ++i)
      AppendLittleEndian(static_cast<uint64_t>(values[i]), width, out);
    return;
  }
  std::array<uint64_t, kTileSlots> numbers{};
  for (size_t i = 0; i < said; ++i) numbers[i] = FloatBits(values[i], width);
  if (AppendNumbers({numbers.data(), said}, width, out))
    (*out)[kind] = static_cast<char>((*out)[kind] | kPackedTileColumn);
}

// `all` is the count if every value had one.
v1::StepExtreme ExtremeRow(const StepExtreme& from, uint64_t all) {
  v1::StepExtreme row;
  if (FitsFloat(from.value)) {
    row.set_value_f(static_cast<float>(from.value));
  } else {
    row.set_value(from.value);
  }
  if (from.count != all) row.set_count(from.count);
  row.set_non_finite(from.non_finite);
  return row;
}

StepExtreme TakeExtreme(const v1::StepExtreme& from, uint64_t all) {
  // A narrow value of 0 means that the wide one is set, or both are 0.
  const double narrow = from.value_f();
  return {SameBits(narrow, 0) ? from.value() : narrow,
          from.count() == 0 ? all : from.count(), from.non_finite()};
}

}  // namespace

void StepExtreme::Add(double number, bool smallest) {
  Join({number, 1, std::isfinite(number) ? uint64_t{0} : 1}, smallest);
}

void StepExtreme::Join(const StepExtreme& other, bool smallest) {
  if (other.count == 0) return;
  if (count == 0 || (!std::isnan(value) &&
                     (std::isnan(other.value) ||
                      (smallest ? other.value < value : other.value > value))))
    value = other.value;
  count += other.count;
  non_finite += other.non_finite;
}

void StepSummary::Join(const StepSummary& other) {
  deleted += other.deleted;
  if (other.steps == 0) return;
  first_step =
      steps == 0 ? other.first_step : std::min(first_step, other.first_step);
  last_step = std::max(last_step, other.last_step);
  steps += other.steps;
  incomplete += other.incomplete;
  made += other.made;
  values += other.values;
  norm.Join(other.norm, /*smallest=*/false);
  max.Join(other.max, /*smallest=*/false);
  min.Join(other.min, /*smallest=*/true);
}

StepSummary SummaryOf(int64_t step, const v1::RollupHead& head) {
  StepSummary out;
  if (head.deleted()) {
    out.deleted = 1;
    return out;
  }
  out.first_step = out.last_step = step;
  out.steps = 1;
  out.incomplete = head.incomplete() ? 1 : 0;
  out.made = head.made();
  out.values = head.values();
  if (head.has_norm()) out.norm = TakeExtreme(head.norm(), out.made);
  if (head.has_max()) out.max = TakeExtreme(head.max(), out.values);
  if (head.has_min()) out.min = TakeExtreme(head.min(), out.values);
  return out;
}

void FillHead(const StepSummary& summary, v1::RollupHead* head) {
  head->set_made(summary.made);
  head->set_values(summary.values);
  if (summary.norm.count > 0)
    *head->mutable_norm() = ExtremeRow(summary.norm, summary.made);
  if (summary.max.count > 0)
    *head->mutable_max() = ExtremeRow(summary.max, summary.values);
  if (summary.min.count > 0)
    *head->mutable_min() = ExtremeRow(summary.min, summary.values);
}

void SummaryTileWriter::Put(uint32_t slot, const StepSummary& summary) {
  present_ |= uint64_t{1} << slot;
  slots_[slot].Join(summary);
}

void SummaryTileWriter::PutHead(uint32_t slot, int64_t step,
                                const v1::RollupHead& head) {
  Put(slot, SummaryOf(step, head));
  heads_[slot] = {head.records(), head.layout()};
}

std::string SummaryTileWriter::Encode(uint64_t tile) const {
  std::string out;
  if (present_ == 0) return out;
  out.push_back(with_heads_ ? kTileWithHeadsKind : kTileKind);
  AppendLittleEndian(present_, &out);
  const uint64_t begin = tile << (level_ * kSummaryBits);
  std::array<TileColumn, kSummaryFields> columns{};
  size_t count = 0;
  for (uint64_t left = present_; left != 0; left &= left - 1, ++count) {
    const auto slot = static_cast<size_t>(absl::countr_zero(left));
    const StepSummary& from = slots_[slot];
    const auto set = [&](size_t field, uint64_t number) {
      columns[field][count] = static_cast<double>(number);
    };
    // In a row of single steps they follow from the slot.
    if (level_ > 1 && from.steps > 0) {
      set(kFirstStep, static_cast<uint64_t>(from.first_step) - begin);
      set(kLastStep, static_cast<uint64_t>(from.last_step) - begin);
    }
    set(kSteps, from.steps);
    set(kIncomplete, from.incomplete);
    set(kDeleted, from.deleted);
    set(kMade, from.made);
    set(kValues, from.values);
    const auto set_extreme = [&](size_t field, const StepExtreme& extreme) {
      columns[field][count] = extreme.value;
      set(field + 1, extreme.count);
      set(field + 2, extreme.non_finite);
    };
    set_extreme(kNormValue, from.norm);
    set_extreme(kMaxValue, from.max);
    set_extreme(kMinValue, from.min);
    if (with_heads_) {
      set(kRecords, heads_[slot].records);
      set(kLayout, heads_[slot].layout);
    }
  }
  for (uint8_t field = 0; field < kSummaryFields; ++field)
    AppendTileColumn(field, columns[field], count, &out);
  return out;
}

absl::StatusOr<SummaryTileView> SummaryTileView::Parse(absl::string_view bytes,
                                                       int level,
                                                       uint64_t tile) {
  static_assert(kFields == kSummaryFields);
  const absl::Status bad =
      absl::DataLossError("a row of summaries cannot be read");
  if (bytes.size() < kTileHead ||
      (bytes[0] != kTileKind && bytes[0] != kTileWithHeadsKind))
    return bad;
  SummaryTileView view;
  view.has_heads_ = HasHeads(bytes);
  if (view.has_heads_ && level != 1) return bad;
  view.level_ = level;
  view.tile_ = tile;
  view.present_ = GetLittleEndian(bytes.substr(1, 8));
  const auto count = static_cast<size_t>(absl::popcount(view.present_));
  bytes.remove_prefix(kTileHead);
  while (!bytes.empty()) {
    if (bytes.size() < kTileColumnHead) return bad;
    const auto field = static_cast<uint8_t>(bytes[0]);
    const auto kind = static_cast<uint8_t>(bytes[1]);
    bytes.remove_prefix(kTileColumnHead);
    if (field >= kFields) return bad;
    Column& column = view.columns_[field];
    column.width = kind & 0x0f;
    column.constant = (kind & kConstantColumn) != 0;
    column.floating = (kind & kFloatColumn) != 0;
    column.data = bytes.data();
    // Steps are relative to the row's first one.
    const size_t most = field == kFirstStep || field == kLastStep ? 4 : 8;
    const bool width_fits = column.floating
                                ? column.width == 4 || column.width == 8
                                : column.width > 0 && column.width <= most;
    if (!width_fits || column.floating != IsNumberField(field)) return bad;
    const size_t said = column.constant ? 1 : count;
    if (column.floating) {
      const auto numbers = NumberColumn::Take(
          said, column.width, (kind & kPackedTileColumn) != 0, &bytes);
      if (!numbers.has_value() || !numbers->IsSound()) return bad;
      column.numbers = *numbers;
      continue;
    }
    if (bytes.size() < column.width * said) return bad;
    bytes.remove_prefix(column.width * said);
  }
  return view;
}

bool SummaryTileView::HasHeads(absl::string_view bytes) {
  return bytes.empty() || bytes[0] != kTileKind;
}

double SummaryTileView::At(size_t field, size_t index) const {
  const Column& column = columns_[field];
  if (column.width == 0) return 0;
  if (column.constant) index = 0;
  if (!column.floating) {
    return static_cast<double>(
        GetLittleEndian({column.data + index * column.width, column.width}));
  }
  return FloatOf(column.numbers.At(index), column.width);
}

absl::Status SummaryTileView::ForEachHead(
    uint64_t slots,
    absl::FunctionRef<absl::Status(int64_t, const v1::RollupHead&)> callback)
    const {
  v1::RollupHead head;
  size_t index = 0;
  for (uint64_t left = present_; left != 0; left &= left - 1, ++index) {
    const uint64_t slot = left & -left;
    if ((slots & slot) == 0) continue;
    const auto whole = [&](size_t field) {
      return static_cast<uint64_t>(At(field, index));
    };
    const auto extreme = [&](size_t field) {
      return StepExtreme{At(field, index), whole(field + 1), whole(field + 2)};
    };
    head.Clear();
    if (whole(kSteps) == 0) {
      head.set_deleted(true);
    } else {
      StepSummary summary;
      summary.made = whole(kMade);
      summary.values = whole(kValues);
      summary.norm = extreme(kNormValue);
      summary.max = extreme(kMaxValue);
      summary.min = extreme(kMinValue);
      FillHead(summary, &head);
      head.set_incomplete(whole(kIncomplete) != 0);
      head.set_records(whole(kRecords));
      head.set_layout(static_cast<uint32_t>(whole(kLayout)));
    }
    const auto step =
        static_cast<int64_t>((tile_ << kSummaryBits) +
                             static_cast<uint64_t>(absl::countr_zero(slot)));
    RP_RETURN_IF_ERROR(callback(step, head));
  }
  return absl::OkStatus();
}

template <typename Visit>
void SummaryTileView::ForEach(size_t field, uint64_t slots,
                              const Visit& visit) const {
  for (uint64_t left = slots; left != 0; left &= left - 1) {
    const int slot = absl::countr_zero(left);
    const uint64_t below = (uint64_t{1} << slot) - 1;
    visit(At(field, static_cast<size_t>(absl::popcount(present_ & below))));
  }
}

uint64_t SummaryTileView::Sum(size_t field, uint64_t slots) const {
  const Column& column = columns_[field];
  if (column.width == 0) return 0;
  if (column.constant) {
    return static_cast<uint64_t>(At(field, 0)) *
           static_cast<uint64_t>(absl::popcount(slots));
  }
  uint64_t sum = 0;
  ForEach(field, slots,
          [&](double number) { sum += static_cast<uint64_t>(number); });
  return sum;
}

StepExtreme SummaryTileView::Extreme(size_t field, uint64_t slots,
                                     bool smallest) const {
  StepExtreme out;
  out.count = Sum(field + 1, slots);
  if (out.count == 0) return out;
  out.non_finite = Sum(field + 2, slots);
  // Slots without numbers are skipped.
  uint64_t with = slots;
  if (!columns_[field + 1].constant) {
    for (uint64_t left = slots; left != 0; left &= left - 1) {
      const uint64_t slot = left & -left;
      const auto index =
          static_cast<size_t>(absl::popcount(present_ & (slot - 1)));
      if (At(field + 1, index) == 0) with &= ~slot;
    }
  }
  if (columns_[field].constant || columns_[field].width == 0) {
    out.value = At(field, 0);
    return out;
  }
  StepExtreme extreme;
  ForEach(field, with, [&](double number) {
    extreme.Join({number, 1, 0}, smallest);
  });
  out.value = extreme.value;
  return out;
}

StepSummary SummaryTileView::Reduce(uint64_t slots, SummaryStat stat) const {
  StepSummary out;
  slots &= present_;
  if (slots == 0) return out;
  out.deleted = Sum(kDeleted, slots);
  out.steps = Sum(kSteps, slots);
  if (out.steps == 0) return out;
  const uint64_t begin = tile_ << (level_ * kSummaryBits);
  // Slots that have steps which were not deleted.
  uint64_t with = slots;
  if (!columns_[kSteps].constant) {
    for (uint64_t left = slots; left != 0; left &= left - 1) {
      const uint64_t slot = left & -left;
      if (At(kSteps,
             static_cast<size_t>(absl::popcount(present_ & (slot - 1)))) == 0)
        with &= ~slot;
    }
  }
  const int first = absl::countr_zero(with);
  const int last = 63 - absl::countl_zero(with);
  if (level_ == 1) {
    out.first_step = static_cast<int64_t>(begin + static_cast<uint64_t>(first));
    out.last_step = static_cast<int64_t>(begin + static_cast<uint64_t>(last));
  } else {
    const auto at = [&](size_t field, int slot) {
      const uint64_t below = (uint64_t{1} << slot) - 1;
      return static_cast<int64_t>(
          begin +
          static_cast<uint64_t>(At(
              field, static_cast<size_t>(absl::popcount(present_ & below)))));
    };
    out.first_step = at(kFirstStep, first);
    out.last_step = at(kLastStep, last);
  }
  out.incomplete = Sum(kIncomplete, slots);
  out.made = Sum(kMade, slots);
  out.values = Sum(kValues, slots);
  const bool all = stat == SummaryStat::kAll;
  if (all || stat == SummaryStat::kNorm)
    out.norm = Extreme(kNormValue, slots, /*smallest=*/false);
  if (all || stat == SummaryStat::kMax)
    out.max = Extreme(kMaxValue, slots, /*smallest=*/false);
  if (all || stat == SummaryStat::kMin)
    out.min = Extreme(kMinValue, slots, /*smallest=*/true);
  return out;
}

}  // namespace rankprobe
