// SPDX-License-Identifier: Apache-2.0
// Actions of the simulated processes, for the judge, and their records: a pure function of rank and step, so that every byte that must be in
// the archive is known. Not thread-safe.
#ifndef RANKPROBE_TESTS_SIM_FACTS_H_
#define RANKPROBE_TESTS_SIM_FACTS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rankprobe/v1/control.pb.h"

namespace rankprobe::sim {

inline constexpr char kRun[] = "sim";
inline constexpr int kCallsPerStep = 4;
// The calls, a beginning and an end.
inline constexpr uint64_t kRecordsPerStep = kCallsPerStep + 2;

struct Payload {
  std::string data;
  std::array<uint8_t, 16> digest{};
};
// Of each step one that all ranks share for a while and one of its own, which
// is now and then of several chunks.
std::vector<Payload> PayloadsOf(int64_t rank, int64_t step);
std::string EntryOf(int call);

// A step that a process recorded.
struct StepFact {
  uint64_t epoch = 0;
  // Something of it was shed, for want of room or time.
  bool shed = false;
  // What a barrier behind it has returned.
  bool committed = false, synced = false;
  // It was only committed when the collector's machine went down.
  bool at_risk = false;
};

// A step that a process began, under what it was told by then.
struct PlanFact {
  int64_t step = 0;
  uint64_t epoch = 0;
  bool enabled = false;
  // What tells one plan from another.
  std::string plan;
};

struct Life {
  int64_t rank = 0;
  int64_t pid = 0;
  uint64_t incarnation = 0;
  std::map<int64_t, StepFact> steps;
  std::vector<PlanFact> plans;
  bool killed = false;
};

// A switch that was answered.
struct Told {
  bool enabled = false;
  int64_t for_steps = 0;
  v1::SwitchResult result;

  bool On(int64_t step) const {
    return enabled &&
           (for_steps == 0 || step < result.effective_at_step() + for_steps);
  }
};

struct Facts {
  std::vector<Life> lives;
  std::vector<Told> told;
  // Payloads may have been refused for want of room.
  bool disk_was_full = false;
  // The collector's machine went down.
  bool machine_crashed = false;
  // Found while it ran: a wait that was longer than its deadline.
  std::vector<std::string> faults;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_FACTS_H_
