// SPDX-License-Identifier: Apache-2.0
// Records of the crash oracle's agents: a pure function of (seed, rank, step),
// so that the checker knows every byte that must be in the archive.
#ifndef RANKPROBE_TESTS_CRASH_WORKLOAD_H_
#define RANKPROBE_TESTS_CRASH_WORKLOAD_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace rankprobe::crash {

inline constexpr char kRun[] = "oracle";
// Steps of one life of a rank begin at a multiple of this.
inline constexpr int64_t kStepsPerLife = 1000000;
inline constexpr int kCallsPerStep = 12;

struct Payload {
  std::string data;
  std::array<uint8_t, 16> digest{};
};

Payload MakePayload(std::string data);

// One that all ranks and steps share for a while, one of several chunks, one
// small one. `kept`: of three steps in four only the first, so that most of
// them have nothing to send but records. `small`: all in frames of some KiB.
std::vector<Payload> PayloadsOf(uint64_t seed, int64_t rank, int64_t step,
                                bool kept, bool small = false);
// The statistic that the rank says of a call's output.
double NormOf(uint64_t seed, int64_t rank, int64_t step, int call);

// Beside the state file of an agent whose payloads went through shared memory.
inline constexpr char kOnLane[] = ".lane";

// Runs as one rank until SIGTERM: exit code 0 when all that was recorded is
// committed. `state_path` gets a line "P <step>" before a step is submitted and
// "A <step>" once its flush has returned; `kept`: or once it is in the spool,
// without a wait (StopBarrier::kKept). Two steps take `pause` and what it takes
// to store them.
int RunAgent(const std::string& collector, uint64_t seed, int64_t rank,
             int64_t life, const std::string& state_path,
             const std::string& spool_directory, bool kept,
             absl::Duration pause, bool small = false);

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_WORKLOAD_H_
