// SPDX-License-Identifier: Apache-2.0
// One simulated job: ranks with their sessions, a collector and an operator who
// switches, and a seed that breaks things. Of half of the seeds the collector is a
// leaf, which stores what has ended in a bucket and frees it; of half of these there
// are two, between which ranks move, and no operator: that takes a root, which is
// not simulated. Everything of the product runs as it
// is; what it stands on is simulated: time and threads (scheduler.h), the network
// (network.h), disks (common/testing/fault_file_system.h), randomness.
// Not thread-safe, and one at a time.
#ifndef RANKPROBE_TESTS_SIM_WORLD_H_
#define RANKPROBE_TESTS_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/session/collector_channel.h"
#include "agent/runtime/session/session.h"
#include "collector/object_store/directory_object_store.h"
#include "common/testing/fault_file_system.h"
#include "tests/sim/bucket.h"
#include "tests/sim/collector_process.h"
#include "tests/sim/facts.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"

namespace rankprobe::sim {

inline constexpr int64_t kRanks = 3;
// The number of a collector's first process is one more, of the next machine's a
// hundred more.
inline constexpr uint64_t kCollector = 1000;
// A config.json; the number tells one plan from another.
std::string ConfigText(uint64_t number, bool enabled);

// A fault that the simulation is to find.
enum class Plant {
  kNone,
  // Ranks are told that what has come is committed.
  kEarlyCommit,
  // Ranks are told that what is committed is synced.
  kEarlySync,
  // One rank is told of another step than the others.
  kWrongStep,
  // A leaf frees what is not stored.
  kEarlyFree,
};

struct Outcome {
  std::vector<std::string> faults;
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  absl::Duration virtual_time;
  // Steps that were found whole, ranks that applied a switch; what was done.
  uint64_t steps = 0, applied = 0;
  int cuts = 0, moves = 0, rank_kills = 0, collector_kills = 0, crashes = 0,
      full_disks = 0, flips = 0, bucket_faults = 0;
  // Steps that were judged as the bucket alone has them.
  uint64_t sealed_steps = 0;
};

class Judge;

class World {
 public:
  explicit World(uint64_t seed, Plant plant = Plant::kNone);
  ~World();
  // All of it. `trace`: what happened, line by line; may be null.
  Outcome Run(std::vector<std::string>* trace);

 private:
  struct RankProcess {
    int64_t rank = 0;
    uint64_t number = 0;
    size_t life = 0;
    bool dead = false, ended = false;
    // Not while a barrier waits.
    std::shared_ptr<Connection> connection;
  };
  class Channel;
  // What a collector runs on.
  struct Machine {
    explicit Machine(const Scheduler* scheduler) : clock(scheduler) {}
    // Of the collector's present life.
    uint64_t process() const { return first + static_cast<uint64_t>(lives); }
    uint64_t first = 0;
    SimClock clock;
    testing::FaultFileSystem disk;
    // Null: it is down.
    std::shared_ptr<CollectorProcess> collector;
    int lives = 0;
    bool disk_full = false;
  };

  Machine* MachineOf(int64_t rank) const {
    return rank_machines_[static_cast<size_t>(rank)];
  }
  void PlantIn(Stream* stream, int64_t rank, bool upload) const;
  // Now and then.
  void DamageHeaders(Connection* connection);
  // A fiber of the world's own.
  void Spawn(std::function<void()> body);
  void StartRank(int64_t rank);
  void Train(const std::shared_ptr<RankProcess>& process);
  bool Flush(RankProcess* process, Session* session, absl::Duration deadline);
  void RecordStep(RankProcess* process, Session* session, int64_t step,
                  uint64_t epoch);
  void Operate();
  void Switch();
  void Disturb();
  void DisturbOnce();
  void CutRank(int64_t rank);
  void KillRank(int64_t rank);
  // To the other leaf.
  void MoveRank(int64_t rank);
  // False: its disk is full.
  bool StartCollector(Machine* on);
  // In one of its next writes, and the rest of it soon after.
  void KillCollectorAtWrite(Machine* on, bool machine);
  // `machine`: with what was not synced. `graceful`: it says goodbye.
  void EndCollector(Machine* on, bool machine, bool graceful);
  void Bury(std::shared_ptr<CollectorProcess> process,
            std::vector<std::shared_ptr<Stream>> streams);
  std::vector<std::shared_ptr<Stream>> StreamsTo(uint64_t process);
  void FillDisk(Machine* on);
  void TroubleBucket();
  void Fault(std::string text);
  void ForgetStreams();
  bool AllEnded() const;
  void Judge(Outcome* outcome);
  // What a root sees of the leaves; then, when all is sealed, what the bucket has.
  void JudgeLeaves(sim::Judge* judge);

  const Plant plant_;
  Scheduler scheduler_;
  SimClock rank_clock_;
  // Of another machine, which stays.
  testing::FaultFileSystem bucket_disk_;
  DirectoryObjectStore bucket_;
  BucketWeather weather_;
  CollectorProcess::Options collector_options_;
  std::vector<std::unique_ptr<Machine>> machines_;
  // Where a rank's collector runs.
  std::vector<Machine*> rank_machines_;
  int buried_ = 0, restarts_ = 0;
  std::vector<std::shared_ptr<Stream>> streams_;
  uint64_t connections_ = 0;
  std::vector<std::shared_ptr<RankProcess>> ranks_;
  std::vector<std::unique_ptr<TimeSource::Thread>> fibers_;
  // The newest step that each rank began, in all of its lives.
  std::vector<int64_t> reached_;
  int64_t steps_per_rank_ = 0;
  bool quiet_ = false, operator_ended_ = false;
  Facts facts_;
  Outcome outcome_;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_WORLD_H_
