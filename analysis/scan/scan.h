// SPDX-License-Identifier: Apache-2.0
// Where did a run first go wrong? Looks through the norms of its values over
// steps and ranks, without a reference: what is not finite, what moves far out
// of its own course, ranks that part, values that vanish (docs/monitor.md,
// "Find by itself"). Pure functions of plain values; whatever the numbers are.
#ifndef RANKPROBE_ANALYSIS_SCAN_SCAN_H_
#define RANKPROBE_ANALYSIS_SCAN_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/detect/course.h"

namespace rankprobe::analysis {

// One value at one step, over the ranks that recorded it.
struct ScanCell {
  double largest = 0;
  double smallest = 0;
  // Ranks; 0: it is not recorded there.
  uint32_t count = 0;
  // NaN or infinite ones among them.
  uint32_t non_finite = 0;
  // Which; -1 where that is not known.
  int64_t largest_rank = -1;
  int64_t smallest_rank = -1;
  // Its infinities are -Infinity alone, in a value that may be a mask.
  bool meant = false;
};

struct ScanSeries {
  std::string name;
  // One for each of ScanInput::steps.
  std::vector<ScanCell> cells;
  // It is one number that may pass through 0 (CourseLimits).
  bool passes_zero = false;
};

struct ScanInput {
  // Ascending.
  std::vector<int64_t> steps;
  // In the order in which a step computes them.
  std::vector<ScanSeries> values;
  // A column is one step.
  bool each_step = true;
};

using ScanOptions = CourseOptions;

enum class ScanKind {
  kNonFinite,  // NaN or infinite
  kRanksPart,  // ranks agreed on it in the steps before, and do no more
  kNotAlike,   // ranks never agree on it, and do on nearly all of its like
  kMove,       // far off its own course
  kRankMoves,  // one rank far from the others, which it was not before
  kVanished,   // 0 from here on, and was not before
  kChanged,    // a parameter is not what the step before left
  kNoMore,     // state of an optimizer that disappeared
};

struct ScanFinding {
  ScanKind kind = ScanKind::kMove;
  int64_t step = 0;
  std::string name;
  // Place of `name` in ScanInput::values.
  size_t value = 0;
  // The rank that stands out; -1: several, or it cannot be said.
  int64_t rank = -1;
  // What it is there, and what it was before (median).
  double now = 0;
  double before = 0;
  // How many other values have a finding of the kind at that step or, of
  // lasting ones, later.
  size_t others = 0;
  // The ranks that are replicas of each other; empty: all.
  std::vector<int64_t> of_group;
};

// ScanSeries::passes_zero of a value with these Norms. means: its Means, the
// largest and the smallest over the ranks, of the same steps.
bool MayPassZero(const ScanSeries& norms, const std::vector<ScanCell>& means);

// "non-finite", "ranks part", ..
absl::string_view ScanKindText(ScanKind kind);

// Whether -Infinity in it is not a fault: an input or an output of a module, not a
// parameter, a gradient, a loss.
// `given`: the calls (ForwardOf) of which an input holds an infinity.
bool MayBeMask(absl::string_view name,
               const absl::flat_hash_set<absl::string_view>& given);
// "Tensor.add.0.forward" of an input or output of that call; empty of others.
absl::string_view ForwardOf(absl::string_view name);

// Earliest first, at one step in the order of execution.
void SortFindings(std::vector<ScanFinding>* findings);

// Only ranks that part and parameters that change between steps: of the ranks of
// one group of replicas.
std::vector<ScanFinding> ScanReplicas(const ScanInput& input);

// At most one finding a kind and step, the first value of its step; earliest
// first, at one step in the order of execution. Steps right after a move belong
// to it.
std::vector<ScanFinding> Scan(const ScanInput& input,
                              const ScanOptions& options);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_SCAN_H_
