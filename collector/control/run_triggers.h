// SPDX-License-Identifier: Apache-2.0
// The collector's half of triggers for one run: rules that need more than one
// rank (silence, replicas), cool-downs over all ranks, and the run's byte
// budget. Pure: what happened goes in, what fires comes out.
// Not thread-safe: guarded by ControlCore's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_RUN_TRIGGERS_H_
#define RANKPROBE_COLLECTOR_CONTROL_RUN_TRIGGERS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/triggers.pb.h"

namespace rankprobe {

class RunTriggers {
 public:
  // `spec` has been checked; defaults are filled in here.
  void Set(const v1::TriggerSpec& spec);
  const v1::TriggerSpec& spec() const { return spec_; }
  bool set() const { return set_; }

  // A rule that has come true somewhere.
  struct Fired {
    v1::TriggerRule rule;
    v1::Identity identity;
    int64_t step = -1;
    std::string entry;
    std::string detail;
  };

  // Who the run's ranks are and when they last moved.
  struct Rank {
    v1::Identity identity;
    int64_t step = -1;
    bool connected = false;
    // It said that it would end.
    bool farewell = false;
    absl::Time moved;
  };

  // A rule of an agent; nullopt when no rule has this name, or one that is the
  // collector's to judge.
  std::optional<Fired> OnFired(const v1::Identity& identity,
                               const v1::TriggerFired& fired) const;
  // The digests of one step are compared when `ranks` connected ranks have
  // reported it.
  std::vector<Fired> OnReplica(const v1::Identity& identity,
                               const v1::ReplicaDigest& replica, size_t ranks);
  std::vector<Fired> CheckSilence(const std::vector<Rank>& ranks,
                                  absl::Time now);

  // Whether the rule may act now; if so its rest begins. Otherwise `*why` says
  // why not. What one `domain` makes of a rule takes nothing from the others.
  bool TryStartCooldown(const v1::TriggerRule& rule, const std::string& domain,
                        absl::Time now, std::string* why);

  // Bytes were received; the level to degrade to, when it has just changed.
  std::optional<uint32_t> OnBytes(uint64_t bytes);
  uint32_t degrade() const { return degrade_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Turn {
    absl::Time rests_until = absl::InfinitePast();
    uint32_t fires = 0;
  };
  struct Replica {
    v1::Identity identity;
    uint64_t digest = 0;
  };

  bool set_ = false;
  v1::TriggerSpec spec_;
  // By rule and domain.
  std::map<std::pair<std::string, std::string>, Turn> turns_;
  std::map<int64_t, std::map<uint64_t, Replica>> replicas_;
  // Incarnations whose silence has been told, and the step it was in.
  std::map<uint64_t, int64_t> silent_;
  uint64_t bytes_ = 0;
  uint32_t degrade_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_RUN_TRIGGERS_H_
