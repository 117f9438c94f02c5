// SPDX-License-Identifier: Apache-2.0
// The collector's half of triggers for one run: rules that need more than one
// rank (silence, replicas), cool-downs over all ranks, and the run's byte
// budget. Pure: events are passed in, fired rules are returned.
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

  // A rule that fired on a rank.
  struct Fired {
    v1::TriggerRule rule;
    v1::Identity identity;
    int64_t step = -1;
    std::string entry;
    std::string detail;
  };

  // A rank of the run, and when its step last changed.
  struct Rank {
    v1::Identity identity;
    int64_t step = -1;
    bool connected = false;
    // It announced its end.
    bool farewell = false;
    absl::Time moved;
  };

  // Handles a rule that fired in an agent; nullopt if there is no rule of this
  // name, or if the collector evaluates it.
  std::optional<Fired> OnFired(const v1::Identity& identity,
                               const v1::TriggerFired& fired) const;
  // Compares the digests of one step once `ranks` connected ranks have reported
  // it.
  std::vector<Fired> OnReplica(const v1::Identity& identity,
                               const v1::ReplicaDigest& replica, size_t ranks);
  std::vector<Fired> CheckSilence(const std::vector<Rank>& ranks,
                                  absl::Time now);

  // Returns whether the rule may act now; if so, its cool-down begins.
  // Otherwise sets `*why` to the reason. Each `domain` has its own cool-down.
  bool TryStartCooldown(const v1::TriggerRule& rule, const std::string& domain,
                        absl::Time now, std::string* why);

  // Counts received bytes. Returns the level to degrade to if it has just
  // changed.
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
  // Incarnations whose silence was reported, with their step.
  std::map<uint64_t, int64_t> silent_;
  uint64_t bytes_ = 0;
  uint32_t degrade_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_RUN_TRIGGERS_H_
