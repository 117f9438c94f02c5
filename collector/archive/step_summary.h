// SPDX-License-Identifier: Apache-2.0
// What one or several steps of a process come to, and rows of 64 of these
// (docs/formats.md, "Summaries"). True values: nothing is clipped or rounded, a
// NaN among the numbers is the result. Plain values, one thread at a time.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_STEP_SUMMARY_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_STEP_SUMMARY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/archive/number_column.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// The largest or the smallest of several numbers.
struct StepExtreme {
  double value = 0;
  uint64_t count = 0;
  // NaN and infinite ones among them.
  uint64_t non_finite = 0;

  void Add(double number, bool smallest);
  void Join(const StepExtreme& other, bool smallest);
};

struct StepSummary {
  // Of the steps that are counted; without any, 0 and -1.
  int64_t first_step = 0, last_step = -1;
  uint64_t steps = 0;
  // Of `steps`, those that are not whole; beside them, those that were deleted.
  uint64_t incomplete = 0, deleted = 0;
  // Outputs and gradients, and all values, with or without statistics.
  uint64_t made = 0, values = 0;
  // The largest Norm of what was made, the largest Max and the smallest Min of
  // all values.
  StepExtreme norm, max, min;

  void AddValue(bool given, const v1::TensorSummary& tensor);
  void Join(const StepSummary& other);
};

StepSummary SummaryOf(int64_t step, const v1::RollupHead& head);
void FillHead(const StepSummary& summary, v1::RollupHead* head);

inline constexpr uint32_t kTileSlots = 64;

// `level`: of the row, whose slots cover 64^(level - 1) steps each.
class SummaryTileWriter {
 public:
  explicit SummaryTileWriter(int level) : level_(level) {}
  // Of steps of this slot; what was put there before is joined.
  void Put(uint32_t slot, const StepSummary& summary);
  // Empty where nothing was put.
  std::string Encode(uint64_t tile) const;

 private:
  const int level_;
  uint64_t present_ = 0;
  std::array<StepSummary, kTileSlots> slots_{};
};

// Which of the three extremes are read; the others stay empty.
enum class SummaryStat { kNorm, kMax, kMin, kAll };

// A view of bytes that outlive it.
class SummaryTileView {
 public:
  // DATA_LOSS where the bytes are no such row.
  static absl::StatusOr<SummaryTileView> Parse(absl::string_view bytes,
                                               int level, uint64_t tile);
  uint64_t present() const { return present_; }
  // Of these slots together, those that are there.
  StepSummary Reduce(uint64_t slots, SummaryStat stat) const;

 private:
  static constexpr size_t kFields = 16;
  struct Column {
    // 0: absent, all zero.
    uint8_t width = 0;
    bool constant = false, floating = false;
    // Of whole numbers; the others have `numbers`.
    const char* data = nullptr;
    NumberColumn numbers;
  };
  double At(size_t field, size_t index) const;
  template <typename Visit>
  void ForEach(size_t field, uint64_t slots, const Visit& visit) const;
  uint64_t Sum(size_t field, uint64_t slots) const;
  StepExtreme Extreme(size_t field, uint64_t slots, bool smallest) const;

  int level_ = 1;
  uint64_t tile_ = 0, present_ = 0;
  std::array<Column, kFields> columns_{};
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_STEP_SUMMARY_H_
