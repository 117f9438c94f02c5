// SPDX-License-Identifier: Apache-2.0
// Summaries of one or several steps of a process, and rows of 64 of them, some
// of which hold all heads of their steps (docs/storage.md, "Summaries"). Values
// are exact: nothing is clipped or rounded, and a NaN among the numbers makes
// the result NaN.
// Plain values, one thread at a time.
#ifndef RANKPROBE_COLLECTOR_STORE_STEP_SUMMARY_H_
#define RANKPROBE_COLLECTOR_STORE_STEP_SUMMARY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/number_column.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// A row of summaries covers 64^level steps.
inline constexpr int kSummaryLevels = 3;
inline constexpr int kSummaryBits = 6;

// The largest or the smallest of several numbers.
struct StepExtreme {
  double value = 0;
  uint64_t count = 0;
  // How many of them are NaN or infinite.
  uint64_t non_finite = 0;

  void Add(double number, bool smallest);
  void Join(const StepExtreme& other, bool smallest);
};

struct StepSummary {
  // First and last of the counted steps; 0 and -1 without any.
  int64_t first_step = 0, last_step = -1;
  uint64_t steps = 0;
  // `incomplete` of the counted steps are not complete; `deleted` steps are
  // counted only here.
  uint64_t incomplete = 0, deleted = 0;
  // `made` counts outputs and gradients, `values` all values, with or without
  // statistics.
  uint64_t made = 0, values = 0;
  // The largest Norm of outputs and gradients, the largest Max and the smallest
  // Min of all values.
  StepExtreme norm, max, min;

  void Join(const StepSummary& other);
};

StepSummary SummaryOf(int64_t step, const v1::RollupHead& head);
void FillHead(const StepSummary& summary, v1::RollupHead* head);

inline constexpr uint32_t kTileSlots = 64;

// `level` is that of the row, whose slots cover 64^(level - 1) steps each.
class SummaryTileWriter {
 public:
  // `with_heads`: a row of level 1 that replaces the heads of its steps, each
  // of which is added with PutHead.
  explicit SummaryTileWriter(int level, bool with_heads = false)
      : level_(level), with_heads_(with_heads) {}
  // Adds a summary of steps of this slot; it is merged with earlier ones.
  void Put(uint32_t slot, const StepSummary& summary);
  // Adds the head of a step to a row of level 1, once per slot.
  void PutHead(uint32_t slot, int64_t step, const v1::RollupHead& head);
  // Returns the row; empty if nothing was added.
  std::string Encode(uint64_t tile) const;

 private:
  struct HeadNumbers {
    uint64_t records = 0, layout = 0;
  };
  const int level_;
  const bool with_heads_;
  uint64_t present_ = 0;
  std::array<StepSummary, kTileSlots> slots_{};
  // Numbers of the heads that PutHead added.
  std::array<HeadNumbers, kTileSlots> heads_{};
};

// Which of the three extremes are read; the others stay empty.
enum class SummaryStat { kNorm, kMax, kMin, kAll };

// A view of bytes that outlive it.
class SummaryTileView {
 public:
  // DATA_LOSS if the bytes are not such a row.
  static absl::StatusOr<SummaryTileView> Parse(absl::string_view bytes,
                                               int level, uint64_t tile);
  // Returns whether a row may hold heads. True also for bytes that Parse
  // refuses, so that a reader reports the damage instead of omitting the steps.
  static bool HasHeads(absl::string_view bytes);
  uint64_t present() const { return present_; }
  // The row replaces the heads of its steps.
  bool has_heads() const { return has_heads_; }
  // Calls `callback` for the heads of those of the slots that are present, in
  // ascending order.
  absl::Status ForEachHead(
      uint64_t slots,
      absl::FunctionRef<absl::Status(int64_t step, const v1::RollupHead&)>
          callback) const;
  // Returns the merged summary of those of the slots that are present.
  StepSummary Reduce(uint64_t slots, SummaryStat stat) const;

 private:
  static constexpr size_t kFields = 18;
  struct Column {
    // Width of a number; 0 if the column is absent, which means that all are
    // zero.
    uint8_t width = 0;
    bool constant = false, floating = false;
    // Set for integers; floating point numbers are in `numbers`.
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
  bool has_heads_ = false;
  std::array<Column, kFields> columns_{};
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STEP_SUMMARY_H_
