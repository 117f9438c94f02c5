// SPDX-License-Identifier: Apache-2.0
// Budget of bytes and time that recording may still use: 0 all, 1 statistics
// instead of tensors, 2 checksums only. A step's level never decreases before
// the step ends; a process' or run's never at all. Not thread-safe: guarded by
// the TriggerWatcher's lock.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_EVIDENCE_BUDGET_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_EVIDENCE_BUDGET_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/triggers.pb.h"

namespace rankprobe {

class EvidenceBudget {
 public:
  static constexpr uint32_t kStatistics = 1;
  static constexpr uint32_t kDigest = 2;

  void Configure(const v1::BudgetSpec& spec) { spec_ = spec; }
  // Sets the level that the collector has sent for the complete run.
  void SetRunLevel(uint32_t level) {
    run_level_ = std::min(level, uint32_t{kDigest});
  }

  void BeginStep(int64_t step) {
    step_ = step;
    step_bytes_ = step_ns_ = 0;
    step_level_ = 0;
  }

  bool limited() const {
    return spec_.bytes_per_step() > 0 || spec_.bytes_per_rank() > 0 ||
           spec_.ms_per_step() > 0;
  }
  uint32_t level() const {
    return std::max({step_level_, rank_level_, run_level_});
  }

  // Adds the cost of something that was recorded. Returns a report if a budget
  // has just been reached. At the limit tensors are left out, at twice the
  // limit statistics too: their cost alone is then beyond it.
  std::optional<v1::BudgetReached> Add(uint64_t bytes, int64_t ns) {
    step_bytes_ += bytes;
    rank_bytes_ += bytes;
    step_ns_ += static_cast<uint64_t>(std::max<int64_t>(ns, 0));
    std::optional<v1::BudgetReached> reached;
    Check("bytes_per_step", static_cast<double>(step_bytes_),
          static_cast<double>(spec_.bytes_per_step()), &step_level_, &reached);
    Check("ms_per_step", static_cast<double>(step_ns_) / 1e6,
          spec_.ms_per_step(), &step_level_, &reached);
    Check("bytes_per_rank", static_cast<double>(rank_bytes_),
          static_cast<double>(spec_.bytes_per_rank()), &rank_level_, &reached);
    return reached;
  }

  // Whether a payload of this size still fits; checked before it is copied.
  bool Fits(uint64_t bytes) const {
    const auto fits = [bytes](uint64_t used, uint64_t limit) {
      return limit == 0 || (used <= limit && bytes <= limit - used);
    };
    return fits(step_bytes_, spec_.bytes_per_step()) &&
           fits(rank_bytes_, spec_.bytes_per_rank());
  }

 private:
  void Check(const char* name, double used, double limit, uint32_t* level,
             std::optional<v1::BudgetReached>* reached) const {
    if (limit <= 0) return;
    const uint32_t now = used >= 2 * limit ? kDigest
                         : used >= limit   ? kStatistics
                                           : 0;
    if (now <= *level) return;
    *level = now;
    reached->emplace();
    (*reached)->set_step(step_);
    (*reached)->set_budget(name);
    (*reached)->set_degraded(now);
    (*reached)->set_used(used);
    (*reached)->set_limit(limit);
  }

  v1::BudgetSpec spec_;
  int64_t step_ = -1;
  uint64_t step_bytes_ = 0, rank_bytes_ = 0, step_ns_ = 0;
  uint32_t step_level_ = 0, rank_level_ = 0, run_level_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_EVIDENCE_BUDGET_H_
