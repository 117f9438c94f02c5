// SPDX-License-Identifier: Apache-2.0
// Values of a run that are equal on its ranks: replicated parameters,
// their reduced gradients and the state computed from both, but not parts that
// begin with the same numbers. Pure functions of a ScanInput, which outlives it.
#ifndef RANKPROBE_ANALYSIS_SCAN_REPLICATED_VALUES_H_
#define RANKPROBE_ANALYSIS_SCAN_REPLICATED_VALUES_H_

#include <cmath>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "analysis/scan/scan.h"

namespace rankprobe::analysis {

inline bool IsPresent(const ScanCell& cell) { return cell.count > 0; }
inline bool IsFinite(const ScanCell& cell) {
  return cell.count > 0 && cell.non_finite == 0 &&
         std::isfinite(cell.largest) && std::isfinite(cell.smallest);
}
inline bool RanksAgree(const ScanCell& cell) {
  return cell.largest == cell.smallest;
}

class ReplicatedValues {
 public:
  explicit ReplicatedValues(const ScanInput& input);

  // Returns the values of the parameter of `name` under another prefix and word,
  // such as "Update" and "param". Null if they were not recorded.
  const std::vector<ScanCell>* OfParameter(absl::string_view name,
                                           absl::string_view prefix,
                                           absl::string_view what) const;
  // Whether replicas have equal values: true for parameters, their reduced
  // gradients and values computed from both. If the parameter itself differs
  // from the first step on, ranks hold shards of it.
  bool IsReplicated(absl::string_view name) const;

 private:
  // Returns null if the value was not recorded with a cell for each step.
  const std::vector<ScanCell>* Find(const std::string& name) const;
  // Whether some ranks that hold the parameter never have its gradient: each
  // pipeline stage may hold the complete model.
  bool IsTrainedElsewhere(absl::string_view name,
                          const std::vector<ScanCell>& parameter) const;
  // Whether each rank holds a part of the parameter, which may begin alike.
  bool IsPart(absl::string_view name,
              const std::vector<ScanCell>& parameter) const;

  const ScanInput& input_;
  // Indices of input_.values.
  absl::flat_hash_map<std::string, size_t> by_name_;
  // By the path in the model: "Module.{path}.{Class}", which gets a gradient.
  absl::flat_hash_map<std::string, std::string> modules_;
  // Whether ranks exchange parts, as the tokens of experts.
  bool exchanges_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_REPLICATED_VALUES_H_
