// SPDX-License-Identifier: Apache-2.0
// Values that leave their usual course: those that jump, on all ranks or on one,
// and those that become 0. Used by one thread; what it is given outlives it.
#ifndef RANKPROBE_ANALYSIS_SCAN_MOVED_VALUES_H_
#define RANKPROBE_ANALYSIS_SCAN_MOVED_VALUES_H_

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "analysis/scan/replicated_values.h"
#include "analysis/scan/scan.h"
#include "analysis/scan/scan_findings.h"

namespace rankprobe::analysis {

class MovedValues {
 public:
  MovedValues(const ScanInput& input, const ScanOptions& options,
              const ReplicatedValues& replicated, ScanFindings& found);

  // Reports where the value, an index of ScanInput::values, jumps.
  void FindMoves(size_t value);
  // Reports since when the value is 0.
  void FindVanished(size_t value);
  // Whether gradients of parameters or their averages were recorded.
  bool HasGradients() const { return !largest_gradients_.empty(); }

 private:
  // Whether the value has no course that predicts its next number.
  bool IsWithoutCourse(size_t value) const;
  // The ratio of an update to a number that passes through 0 is unbounded.
  bool IsRatioToOneNumber(absl::string_view name) const;
  // The gradient of a bias before a normalization is only rounding.
  bool IsRoundingOfGradients(size_t value) const;
  // An average of gradients that are 0 in some steps, as those of an expert,
  // falls in these and jumps in the others, and so do its updates.
  bool IsOfSparseGradients(absl::string_view name) const;

  const ScanInput& input_;
  const ScanOptions& options_;
  const ReplicatedValues& replicated_;
  ScanFindings& found_;
  // Names of values.
  absl::flat_hash_set<std::string> pass_zero_;
  // By kind, over all steps.
  absl::flat_hash_map<absl::string_view, double> largest_gradients_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_MOVED_VALUES_H_
