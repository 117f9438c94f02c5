// SPDX-License-Identifier: Apache-2.0
// Values that a step must find as the last step left them: parameters, and the
// state of optimizers. Used by one thread; what it is given outlives it.
#ifndef RANKPROBE_ANALYSIS_SCAN_KEPT_VALUES_H_
#define RANKPROBE_ANALYSIS_SCAN_KEPT_VALUES_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "analysis/scan/replicated_values.h"
#include "analysis/scan/scan.h"
#include "analysis/scan/scan_findings.h"

namespace rankprobe::analysis {

class KeptValues {
 public:
  KeptValues(const ScanInput& input, const ReplicatedValues& replicated,
             ScanFindings& found);

  // Only the optimizer changes a parameter, so the next step must find the
  // value that the last one left. If that never holds, the program changes the
  // parameter in each step. `value` is an index of ScanInput::values.
  void FindChanged(size_t value);
  // An optimizer's state exists from its first step to the end. A later
  // optimizer of other parameters begins another phase of the training, such as
  // the head alone before the complete model, and has a state of its own.
  void FindNoMore(size_t value);

 private:
  // Whether optimizers step more often in this step than in the next one. When
  // a second training begins, its first updates belong to one step until its
  // optimizer ends the steps, and only the first of them is recorded.
  bool HasMoreUpdates(size_t column) const;
  // Whether the parameter of this state was updated in that step: each of
  // several optimizers may run in other steps.
  bool IsUpdated(absl::string_view state, size_t column);
  // Whether the same parameters were updated in two steps. Call after
  // IsUpdated().
  bool AreSameUpdated(size_t one, size_t other) const;

  const ScanInput& input_;
  const ReplicatedValues& replicated_;
  ScanFindings& found_;
  // The number of optimizer steps in each step. Null if it was not recorded.
  const std::vector<ScanCell>* stepped_ = nullptr;
  // For each parameter, the columns in which it was updated.
  std::map<std::string, std::vector<bool>> updated_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_KEPT_VALUES_H_
