// tensor.diff_nums of one run: one budget for all ranks under one plan epoch.
// Counts since this collector began; a restart counts anew.
// Not thread-safe: guarded by the ControlPlane's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_
#define RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_

#include <cstdint>
#include <map>
#include <optional>

#include "common/config/plan.h"

namespace rankprobe {

class ReferenceBudget {
 public:
  // A switch that its ranks did not take is tried again so often.
  static constexpr int kMaxTries = 3;

  // One more difference under this plan; how many there are now.
  int64_t Add(uint64_t epoch, const Plan& plan);
  // A plan that is to be switched off now, as one try; nothing when there is
  // none. Ask again after the switch: it may not have been agreed on.
  std::optional<uint64_t> TakeSpent();
  // Nothing was counted.
  bool empty() const { return counts_.empty(); }
  // The plan is no longer in force, or was switched off.
  void Forget(uint64_t epoch);

 private:
  static constexpr size_t kMaxEpochs = 64;

  // By epoch.
  std::map<uint64_t, int64_t> counts_;
  std::map<uint64_t, int> tries_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_
