// SPDX-License-Identifier: Apache-2.0
// Ranks of one switch: their states, and which of the reported steps are
// plausible.
//
// A rank far beyond the others, which the others would not reach in time, is
// left out and keeps its plan.
//
// Owner: SwitchOperation. Not thread-safe.
#ifndef RANKPROBE_COLLECTOR_CONTROL_SWITCH_RANKS_H_
#define RANKPROBE_COLLECTOR_CONTROL_SWITCH_RANKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

struct SwitchProgress {
  int64_t step = -1;
  // Recent duration of a step; 0 if nothing is known.
  int64_t step_ns = 0;
  // The rank begins no step until it has work: a server without requests.
  bool idle = false;
};

// Limit of ranks that a summary names; the result lists all of them.
inline constexpr size_t kMaxNamedRanks = 8;

class SwitchRanks {
 public:
  using State = v1::RankSwitch::State;
  // Returns the current step and step time of a session.
  using Look = std::function<SwitchProgress(const std::string& session)>;
  struct Rank {
    v1::Identity identity;
    // The state when the switch began.
    SwitchProgress was;
    State state = v1::RankSwitch::STATE_UNSPECIFIED;
    int64_t applied_step = 0;
    std::string reason;
    // Its step is not plausible, and the others switch without it.
    bool left_out = false;
    // Why it has refused the commit of the agreed plan.
    std::optional<std::string> late;
    // The plan was sent to it for its next step.
    bool converging = false;
  };

  SwitchRanks(const std::vector<std::string>& sessions,
              const std::function<v1::Identity(const std::string&)>& whose,
              Look look, std::function<absl::Time()> now);

  // Ranks by session. Change a state with SetState and `late` with SetLate and
  // ClearLate, which update the counts.
  std::map<std::string, Rank>& all() { return ranks_; }
  const std::map<std::string, Rank>& all() const { return ranks_; }
  // Returns null if the session is not part of this switch.
  Rank* Find(const std::string& session);

  // Keeps a count for each state, so that AnyIs does not scan thousands of
  // ranks for each answer.
  void SetState(Rank* rank, State state);
  bool AnyIs(State state) const {
    return in_state_[static_cast<size_t>(state)] > 0;
  }
  void SetLate(const std::string& session, std::string reason);
  void ClearLate(const std::string& session);
  const std::set<std::string>& late() const { return late_; }
  // Marks the ranks that have not switched as refused, with a reason that is
  // not theirs.
  void CallOff(const std::string& why);

  // Marks the ranks that have not answered, and returns the names of the first
  // kMaxNamedRanks.
  std::vector<std::string> SetSilent();

  // `others` is the furthest step of the others, for the reason.
  void LeaveOut(Rank* rank, int64_t step, int64_t others);
  void LeaveOutliersOut();
  // Returns whether the rank can have reached `step` since the switch began: by
  // the time at its own pace, or because other ranks are there, too.
  bool Believes(const Rank& rank, int64_t step) const;
  // Returns the furthest step of the ranks that take part; -1 if none has
  // begun.
  int64_t FurthestStep() const;
  // The same without `rank`.
  int64_t FurthestOfOthers(const Rank& rank) const;
  // Returns the step time of the fastest rank; 0 if nothing is known.
  int64_t StepNanos() const;
  bool AreAllIdle() const;
  bool NoneHasApplied() const;

  struct Counts {
    size_t applied = 0;  // Ranks that applied the plan at that step.
    size_t prepared = 0;
    std::vector<std::string> late;
  };
  // Adds all ranks, sorted, to the result of a switch at `step`.
  Counts Report(int64_t step, v1::SwitchResult* result) const;

  // Returns the furthest of the steps, ignoring those far beyond most; -1 if
  // none has begun.
  static int64_t FurthestBelievable(std::vector<int64_t> steps);
  // Returns whether the rank was left out of the switch because of its step.
  static bool IsLeftOut(const v1::RankSwitch& rank);
  // Returns "rank 3", or the process if it has no rank.
  static std::string NameOf(const v1::Identity& identity);

 private:
  // Returns whether the rank is connected and not left out.
  static bool TakesPart(const Rank& rank);
  std::vector<int64_t> StepsOfAllBut(const Rank* but) const;
  // Returns whether its own pace since the switch began allows the step.
  bool CanHaveCome(const Rank& rank, int64_t from, int64_t step) const;
  // Returns whether the others, the furthest of them in `others`, are near the
  // step too.
  bool IsAmong(const Rank& rank, int64_t step, int64_t others) const;

  const Look look_;
  const std::function<absl::Time()> now_;
  const absl::Time began_;
  std::map<std::string, Rank> ranks_;
  std::array<size_t, v1::RankSwitch::State_ARRAYSIZE> in_state_{};
  // Ranks whose Rank::late is set.
  std::set<std::string> late_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_SWITCH_RANKS_H_
