// SPDX-License-Identifier: Apache-2.0
// Events of the simulated job: switches of the operator, and what the seed
// breaks.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/monotonic_time.h"
#include "tests/sim/world.h"

namespace rankprobe::sim {
namespace {

// LevelDB compacts behind a fourth start, on a thread that is not simulated.
constexpr int kMaxCollectorLives = 4;

}  // namespace

std::string ConfigText(uint64_t number, bool enabled) {
  return absl::StrCat(R"({"task": "tensor", "level": "L1", "dump_path": "d)",
                      number, R"(", "dump_enable": )",
                      enabled ? "true" : "false", "}");
}

void World::CutRank(int64_t rank) {
  const std::shared_ptr<RankProcess> process =
      ranks_[static_cast<size_t>(rank)];
  if (process->connection == nullptr) return;
  ++outcome_.cuts;
  const std::shared_ptr<Connection> connection =
      std::exchange(process->connection, nullptr);
  // Who notices late goes on believing in the other.
  const auto notice = [this] {
    return scheduler_.Chance(0.7)
               ? scheduler_.Between(absl::ZeroDuration(), absl::Milliseconds(3))
               : scheduler_.Between(absl::Milliseconds(3), absl::Seconds(8));
  };
  const absl::Duration client = notice(), server = notice();
  ForgetStreams();
  for (const std::shared_ptr<Stream>& stream : streams_) {
    if (stream->connection == connection) stream->Break(client, server);
  }
}

void World::MoveRank(int64_t rank) {
  ++outcome_.moves;
  Machine*& on = rank_machines_[static_cast<size_t>(rank)];
  on = machines_[on == machines_[0].get() ? 1 : 0].get();
  scheduler_.Trace(absl::StrCat("move ", rank));
  CutRank(rank);
}

void World::KillRank(int64_t rank) {
  const std::shared_ptr<RankProcess> process =
      ranks_[static_cast<size_t>(rank)];
  if (process->dead || process->ended || facts_.lives.size() > 8) return;
  ++outcome_.rank_kills;
  process->dead = true;
  facts_.lives[process->life].killed = true;
  scheduler_.Trace(absl::StrCat("kill ", process->number));
  CutRank(rank);
  scheduler_.Sleep(
      scheduler_.Between(absl::Milliseconds(10), absl::Milliseconds(500)));
  StartRank(rank);
}

// The collector.

bool World::StartCollector(Machine* on) {
  ++on->lives;
  const int life = on->lives;
  auto started = CollectorProcess::Start(
      collector_options_, &on->disk,
      MortalBucket(&bucket_, &weather_, &scheduler_), &on->clock,
      [this, on, life] {
        // The store has failed: the process ends, and is started again.
        scheduler_.At(absl::Milliseconds(1), [this, on, life] {
          if (life == on->lives && on->collector != nullptr)
            Spawn([this, on] { EndCollector(on, false, false); });
        });
      });
  scheduler_.Trace(absl::StrCat("collector ", started.ok()));
  if (!started.ok()) {
    if (on->disk_full) return false;
    Fault(absl::StrCat("the collector does not start: ",
                       started.status().message()));
    return true;
  }
  on->collector = *std::move(started);
  return true;
}

std::vector<std::shared_ptr<Stream>> World::StreamsTo(uint64_t process) {
  ForgetStreams();
  std::vector<std::shared_ptr<Stream>> streams;
  std::copy_if(streams_.begin(), streams_.end(), std::back_inserter(streams),
               [process](const auto& s) { return s->to == process; });
  return streams;
}

void World::Bury(std::shared_ptr<CollectorProcess> process,
                 std::vector<std::shared_ptr<Stream>> streams) {
  // Its streams end first: they call it.
  Spawn([this, process = std::move(process),
         streams = std::move(streams)]() mutable {
    for (int i = 0; i < 1000; ++i) {
      if (std::all_of(streams.begin(), streams.end(),
                      [](const auto& s) { return s->server_over(); }))
        break;
      scheduler_.Sleep(absl::Milliseconds(50));
    }
    process.reset();
    --buried_;
  });
  ++buried_;
}

void World::EndCollector(Machine* on, bool machine, bool graceful) {
  if (on->collector == nullptr) return;
  std::shared_ptr<CollectorProcess> process =
      std::exchange(on->collector, nullptr);
  scheduler_.Trace(absl::StrCat("end of the collector ", machine, graceful));
  ++outcome_.collector_kills;
  ++restarts_;
  if (graceful) {
    process->SayGoodbye();
    scheduler_.Sleep(absl::Milliseconds(300));
  } else {
    process->Kill();
  }
  if (machine) {
    ++outcome_.crashes;
    facts_.machine_crashed = true;
    for (Life& life : facts_.lives) {
      for (auto& [step, fact] : life.steps) {
        if (!fact.synced) fact.at_risk = true;
      }
    }
    on->disk.CrashAndRestart(
        scheduler_.Chance(0.5) ? testing::FaultFileSystem::Unsynced::kDropped
                               : testing::FaultFileSystem::Unsynced::kHalfKept);
  }
  const std::vector<std::shared_ptr<Stream>> streams = StreamsTo(on->process());
  for (const std::shared_ptr<Stream>& stream : streams) {
    stream->Break(
        scheduler_.Between(absl::ZeroDuration(),
                           machine ? absl::Seconds(5) : absl::Milliseconds(3)),
        absl::ZeroDuration());
  }
  for (const auto& rank : ranks_) {
    if (rank != nullptr && MachineOf(rank->rank) == on)
      rank->connection = nullptr;
  }
  if (graceful) {
    // It ends before the next begins, or that finds the lock taken.
    while (!std::all_of(streams.begin(), streams.end(),
                        [](const auto& s) { return s->server_over(); }))
      scheduler_.Sleep(absl::Milliseconds(10));
    while (process.use_count() > 1) scheduler_.Sleep(absl::Milliseconds(10));
    process.reset();
  } else {
    Bury(std::move(process), streams);
  }
  on->disk.FailWhile(nullptr);
  scheduler_.Sleep(
      scheduler_.Between(absl::Milliseconds(20), absl::Seconds(2)));
  while (!StartCollector(on)) scheduler_.Sleep(absl::Seconds(1));
  --restarts_;
}

void World::KillCollectorAtWrite(Machine* on, bool machine) {
  const int life = on->lives;
  on->collector->KillAtWrite(
      1 + scheduler_.Choose(60), [this, on, life, machine] {
        scheduler_.Trace("killed at a write");
        for (const std::shared_ptr<Stream>& stream : StreamsTo(on->process()))
          stream->Mute();
        scheduler_.At(
            scheduler_.Between(absl::ZeroDuration(), absl::Milliseconds(8)),
            [this, on, life, machine] {
              if (life != on->lives || on->collector == nullptr) return;
              Spawn([this, on, machine] { EndCollector(on, machine, false); });
            });
      });
}

void World::FillDisk(Machine* on) {
  ++outcome_.full_disks;
  facts_.disk_was_full = on->disk_full = true;
  on->disk.SetCapacity(on->disk.used_bytes() + scheduler_.Choose(60 << 10));
  scheduler_.Trace("the disk is full");
  scheduler_.Sleep(
      scheduler_.Between(absl::Milliseconds(200), absl::Seconds(4)));
  on->disk.SetCapacity(uint64_t{1} << 40);
  on->disk_full = false;
}

void World::TroubleBucket() {
  if (!collector_options_.leaf) return;
  ++outcome_.bucket_faults;
  if (scheduler_.Chance(0.5)) {
    weather_.lost_answers = 1 + static_cast<int>(scheduler_.Choose(4));
  } else {
    weather_.away_until =
        scheduler_.nanos() + absl::ToInt64Nanoseconds(scheduler_.Between(
                                 absl::Milliseconds(100), absl::Seconds(6)));
  }
  scheduler_.Trace("the bucket is in trouble");
}

// The operator.

void World::Switch() {
  struct Answer {
    bool done = false;
    absl::StatusOr<v1::SwitchResult> result;
  };
  Machine* const on = machines_[0].get();
  if (on->collector == nullptr) return;
  const auto answer = std::make_shared<Answer>();
  const auto done = [answer](absl::StatusOr<v1::SwitchResult> result) {
    answer->done = true;
    answer->result = std::move(result);
  };
  Told told;
  told.enabled = scheduler_.Chance(0.6);
  v1::SetDumpEnableRequest request;
  request.set_run(kRun);
  request.set_enable(told.enabled);
  if (scheduler_.Chance(0.5))
    request.set_config_json(
        ConfigText(1 + scheduler_.Choose(1000), told.enabled));
  if (told.enabled && scheduler_.Chance(0.3))
    told.for_steps = 1 + static_cast<int64_t>(scheduler_.Choose(3));
  const auto timeout = static_cast<uint32_t>(1000 + scheduler_.Choose(4000));
  request.mutable_options()->set_for_steps(told.for_steps);
  request.mutable_options()->set_timeout_ms(timeout);
  const int life = on->lives;
  const MonotonicTime began = MonotonicNow();
  // It may be killed meanwhile.
  std::shared_ptr<CollectorProcess> process = on->collector;
  process->control()->plans().SetDumpEnable(request, done, "operator");
  process.reset();
  // Plans are saved once, and a late one is tried anew: three times its time
  // at most.
  while (!answer->done && life == on->lives && on->collector != nullptr &&
         Since(began) < absl::Milliseconds(timeout) + absl::Seconds(10))
    scheduler_.Sleep(absl::Milliseconds(10));
  if (!answer->done) {
    if (life == on->lives && on->collector != nullptr)
      Fault(absl::StrCat("a switch of ", timeout, " ms is not answered"));
    return;
  }
  scheduler_.Trace(absl::StrCat("switch ", answer->result.ok(), " ",
                                answer->result.ok()
                                    ? answer->result->ShortDebugString()
                                    : answer->result.status().ToString()));
  if (!answer->result.ok()) return;
  told.result = *std::move(answer->result);
  facts_.told.push_back(std::move(told));
}

void World::Operate() {
  while (!quiet_) {
    scheduler_.Sleep(
        scheduler_.Between(absl::Milliseconds(100), absl::Milliseconds(800)));
    Switch();
  }
  operator_ended_ = true;
}

// What goes wrong.

void World::DisturbOnce() {
  const auto rank = static_cast<int64_t>(scheduler_.Choose(kRanks));
  Machine* const on = machines_[scheduler_.Choose(machines_.size())].get();
  const bool may_end =
      on->collector != nullptr && on->lives < kMaxCollectorLives - 1;
  switch (scheduler_.Choose(machines_.size() > 1 ? 20 : 13)) {
    case 0:
    case 1:
      return CutRank(rank);
    case 2: {
      const auto& connection = ranks_[static_cast<size_t>(rank)]->connection;
      if (connection == nullptr) return;
      connection->stalled_since = scheduler_.nanos();
      connection->stalled_until =
          scheduler_.nanos() + absl::ToInt64Nanoseconds(scheduler_.Between(
                                   absl::Milliseconds(50), absl::Seconds(6)));
      return scheduler_.Trace(absl::StrCat("stall ", rank));
    }
    case 3:
      return KillRank(rank);
    case 4:
      if (may_end) EndCollector(on, false, false);
      return;
    case 5:
      if (may_end) EndCollector(on, true, false);
      return;
    case 6:
      if (may_end) KillCollectorAtWrite(on, scheduler_.Chance(0.3));
      return;
    case 7:
      if (may_end) EndCollector(on, false, true);
      return;
    case 8:
      return FillDisk(on);
    case 9:
    case 10: {
      const auto& connection = ranks_[static_cast<size_t>(rank)]->connection;
      if (connection == nullptr) return;
      ++outcome_.flips;
      connection->flips = 1 + static_cast<int>(scheduler_.Choose(3));
      return;
    }
    case 11:
      return TroubleBucket();
    case 12:
      // Set by its owner, or by NTP.
      return on->clock.Jump(
          scheduler_.Between(-absl::Hours(2), absl::Hours(2)));
    default:
      return MoveRank(rank);
  }
}

void World::Disturb() {
  const int faults = static_cast<int>(scheduler_.Choose(7));
  for (int i = 0; i < faults; ++i) {
    scheduler_.Sleep(
        scheduler_.Between(absl::ZeroDuration(), absl::Milliseconds(700)));
    DisturbOnce();
  }
  for (const auto& on : machines_) {
    if (on->collector != nullptr) on->collector->KillAtWrite(0, nullptr);
  }
  scheduler_.Sleep(absl::Milliseconds(500));
  quiet_ = true;
}

}  // namespace rankprobe::sim
