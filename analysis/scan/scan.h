// SPDX-License-Identifier: Apache-2.0
// Search for the first fault of a run without a reference, in the norms of its
// values over steps and ranks: values that are not finite, values far outside
// their usual range, ranks that diverge, and values that vanish
// (docs/monitor.md, "Find by itself"). Pure functions of plain values, which
// may hold any numbers.
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
  // Number of ranks; 0 if the value was not recorded at this step.
  uint32_t count = 0;
  // Number of these ranks with a NaN or an infinity.
  uint32_t non_finite = 0;
  // The rank of `largest`, and below that of `smallest`; -1 if unknown.
  int64_t largest_rank = -1;
  int64_t smallest_rank = -1;
  // Only -Infinity occurs, in a value that may be a mask.
  bool meant = false;
};

struct ScanSeries {
  std::string name;
  // One cell for each of ScanInput::steps.
  std::vector<ScanCell> cells;
  // The value is one number that may pass through 0 (CourseLimits).
  bool passes_zero = false;
};

struct ScanInput {
  // In ascending order.
  std::vector<int64_t> steps;
  // In the order in which a step computes them.
  std::vector<ScanSeries> values;
  // Each column is a single step.
  bool each_step = true;
};

using ScanOptions = CourseOptions;

enum class ScanKind {
  kNonFinite,  // NaN or infinite
  kRanksPart,  // ranks agreed on it in the steps before and no longer do
  kNotAlike,   // ranks never agree on it, but on nearly all similar values
  kMove,       // far outside its usual range
  kRankMoves,  // one rank leaves the others, which it was close to
  kVanished,   // 0 from this step on, and not before
  kChanged,    // a parameter differs from the one that the last step left
  kNoMore,     // state of an optimizer that disappeared
};

struct ScanFinding {
  ScanKind kind = ScanKind::kMove;
  int64_t step = 0;
  std::string name;
  // Index of `name` in ScanInput::values.
  size_t value = 0;
  // The rank that deviates; -1 if there are several or it is unknown.
  int64_t rank = -1;
  // The value at this step, and the median of the steps before.
  double now = 0;
  double before = 0;
  // Number of other values with a finding of the same kind at that step; for
  // lasting kinds, also at later steps.
  size_t others = 0;
  // The ranks that are replicas of each other; empty for all ranks.
  std::vector<int64_t> of_group;
};

// Returns ScanSeries::passes_zero for a value with these Norms. `means` holds
// its Means, the largest and the smallest over the ranks, at the same steps.
bool MayPassZero(const ScanSeries& norms, const std::vector<ScanCell>& means);

// Returns a text such as "non-finite" or "ranks part".
absl::string_view ScanKindText(ScanKind kind);

// Whether -Infinity in the value is not a fault: true for an input or output of
// a module, false for a parameter, a gradient or a loss. `given` holds the
// calls (ForwardOf) that have an input with an infinity.
bool MayBeMask(absl::string_view name,
               const absl::flat_hash_set<absl::string_view>& given);
// Returns "Tensor.add.0.forward" for an input or output of that call, and an
// empty text for other values.
absl::string_view ForwardOf(absl::string_view name);

// Whether the value is of a call that exchanges parts between all ranks.
bool IsOfExchange(absl::string_view name);
// Whether a parameter is of an expert, by its name. Ranks that exchange tokens
// hold experts of their own, which one seed may have started with the same
// numbers, so that they are no replicas.
bool IsOfExpert(absl::string_view name);

// Sorts by step, and within a step by the order of execution.
void SortFindings(std::vector<ScanFinding>* findings);

// Searches only for diverging ranks and for parameters that change between
// steps, within one group of replicas.
std::vector<ScanFinding> ScanReplicas(const ScanInput& input);

// Returns at most one finding for each kind and step, that of the step's first
// value, sorted as in SortFindings. Steps right after a move belong to it.
std::vector<ScanFinding> Scan(const ScanInput& input,
                              const ScanOptions& options);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_SCAN_H_
