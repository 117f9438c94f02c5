// SPDX-License-Identifier: Apache-2.0
// The plans of one run: the one in force for all ranks, those of single ranks,
// and the compiled history that the ingest gate checks records against.
// Not thread-safe: guarded by ControlCore's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_RUN_PLANS_H_
#define RANKPROBE_COLLECTOR_CONTROL_RUN_PLANS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/config/plan.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

inline std::optional<int64_t> RankOf(const v1::Identity& identity) {
  return identity.has_rank() ? std::optional<int64_t>(identity.rank())
                             : std::nullopt;
}

// Returns "rank 3", or "proc12" for a process without a rank.
inline std::string RankText(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat("rank ", identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

// An immutable plan in the form that the ingest gate uses.
struct CompiledPlan {
  CompiledPlan(v1::PlanSpec with, std::shared_ptr<const Plan> of)
      : spec(std::move(with)), config(std::move(of)), plan(*config) {}

  const v1::PlanSpec spec;
  const std::shared_ptr<const Plan> config;
  const Plan& plan;

  // Returns whether records of `rank` at `step` are inside this plan.
  bool Admits(std::optional<int64_t> rank, int64_t step) const;
};

class RunPlans {
 public:
  // INVALID_ARGUMENT with every fault. Parsing untrusted text of up to 1 MiB is
  // slow: do not call it under a lock.
  static absl::StatusOr<std::shared_ptr<const Plan>> Parse(
      const std::string& config_json);
  // Compiles a spec whose config_json was parsed into `config`; cheap.
  static absl::StatusOr<std::shared_ptr<const CompiledPlan>> Compile(
      const v1::PlanSpec& spec, std::shared_ptr<const Plan> config);
  // Parses and compiles.
  static absl::StatusOr<std::shared_ptr<const CompiledPlan>> Compile(
      const v1::PlanSpec& spec);

  // Puts an agreed plan in force: for `ranks`, or for all if empty.
  void Set(std::shared_ptr<const CompiledPlan> plan,
           const std::vector<int64_t>& ranks);

  // Replaces the plan of the same epoch wherever it is in force, by the same
  // plan with more of it resolved. Returns its ranks; empty: all.
  std::vector<int64_t> Replace(const std::shared_ptr<const CompiledPlan>& plan);

  // Returns null if the run has no plan.
  std::shared_ptr<const CompiledPlan> ForRank(
      std::optional<int64_t> rank) const;
  std::shared_ptr<const CompiledPlan> ForAll() const { return base_; }
  std::shared_ptr<const CompiledPlan> ByEpoch(uint64_t epoch) const;

  // Returns whether the epoch is older than all known ones: from before the
  // last start, or dropped because of the limit. Its plan is not known any
  // more.
  bool IsForgotten(uint64_t epoch) const {
    return !history_.empty() && epoch < history_.begin()->first;
  }

  uint64_t last_epoch() const { return last_epoch_; }
  // Returns a new epoch. Epochs are never reused, even if an attempt is
  // aborted.
  uint64_t NextEpoch();
  // Returns whether the epoch was drawn here and its plan is not agreed on, as
  // far as that plan can be in the store.
  bool IsUndecided(uint64_t epoch) const { return undecided_.count(epoch) > 0; }
  void RaiseEpoch(uint64_t epoch) {
    last_epoch_ = std::max(last_epoch_, epoch);
  }

 private:
  uint64_t last_epoch_ = 0;
  std::shared_ptr<const CompiledPlan> base_;
  std::map<int64_t, std::shared_ptr<const CompiledPlan>> of_rank_;
  std::map<uint64_t, std::shared_ptr<const CompiledPlan>> history_;
  std::set<uint64_t> undecided_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_RUN_PLANS_H_
