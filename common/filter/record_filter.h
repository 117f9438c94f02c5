// SPDX-License-Identifier: Apache-2.0
// Second application of the filter, by the collector: it checks that the
// records of one step are inside the plan that they claim. The decisions are
// CallFilter's own; windows (scope, and a list at level mix) are replayed from
// the CallTrace that agents send ahead of calls.
// Not thread-safe. One instance per (incarnation, step).
#ifndef RANKPROBE_COMMON_FILTER_RECORD_FILTER_H_
#define RANKPROBE_COMMON_FILTER_RECORD_FILTER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/config/plan.h"
#include "common/filter/call_filter.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Whether decisions of this plan depend on the order of calls.
bool PlanHasWindows(const Plan& plan);

class RecordFilter {
 public:
  explicit RecordFilter(std::shared_ptr<const Plan> plan);

  // Traces must be replayed in order. After a gap all windows count as open, so
  // that records are not rejected because of a dropped trace.
  void Replay(const v1::CallTrace& untrusted);

  // Returns the verdict on one phase: the replayed decision, if there is one.
  Verdict Check(const v1::CallPhase& untrusted) const;

 private:
  Verdict CheckSections(const v1::CallPhase& call) const;

  const std::shared_ptr<const Plan> plan_;
  CallFilter filter_;
  uint64_t next_ = 0;
  bool replays_ = false;
  bool gap_ = false;
  absl::flat_hash_map<std::string, Verdict> verdicts_;
};

// Runs a trace through a filter; `seen` receives every decision in order.
template <typename Seen>
void ReplayTrace(const v1::CallTrace& trace, CallFilter* filter, Seen seen) {
  for (const v1::CallTrace::Item& item : trace.items()) {
    switch (item.kind()) {
      case v1::CallTrace::KIND_API:
        seen(item, filter->Api(item.entry()));
        break;
      case v1::CallTrace::KIND_MODULE_BEGIN:
        seen(item, filter->ModuleBegin(item.entry()));
        break;
      case v1::CallTrace::KIND_MODULE_END:
        filter->ModuleEnd(item.entry());
        break;
      case v1::CallTrace::KIND_PARAMETERS_GRAD:
        seen(item, filter->ParametersGrad(item.entry()));
        break;
      default:
        break;
    }
  }
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_FILTER_RECORD_FILTER_H_
