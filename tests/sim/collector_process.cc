// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/collector_process.h"

#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/sim/facts.h"

namespace rankprobe::sim {
namespace {

// As server.cc.
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kDiskLook = absl::Milliseconds(100);
constexpr absl::Duration kSealEvery = absl::Milliseconds(300);

}  // namespace

absl::StatusOr<std::unique_ptr<CollectorProcess>> CollectorProcess::Start(
    const Options& options, FileSystem* disk, MortalBucket bucket,
    const Clock* clock, std::function<void()> failed) {
  std::unique_ptr<CollectorProcess> self(
      new CollectorProcess(disk, bucket, std::move(failed)));
  StoreOptions store;
  store.data_dir = "/data";
  store.min_free_bytes = 4 << 10;
  store.segment_bytes = 1 << 20;
  store.leveldb_cache_bytes = 256 << 10;
  store.compress_payloads = options.compress;
  RP_ASSIGN_OR_RETURN(self->store_, Store::Open(store, &self->files_, clock));
  EventLog::Options events;
  events.path = "/data/events";
  events.own_thread = true;
  RP_ASSIGN_OR_RETURN(self->events_,
                      EventLog::Open(events, &self->files_, clock));
  ControlPlane::Options control;
  control.credit_bytes = options.credit_bytes;
  control.events = self->events_.get();
  control.own_thread = true;
  self->control_ = std::make_unique<ControlPlane>(control, self->store_.get(),
                                                  self->store_.get(), clock);
  if (options.watch_disk) {
    DiskPressure::Options pressure;
    pressure.directory = "/data";
    pressure.high_percent = 85;
    pressure.full_percent = 95;
    pressure.min_free_bytes = store.min_free_bytes;
    self->pressure_ =
        std::make_unique<DiskPressure>(pressure, &self->files_, clock);
  }
  CommitQueue::Options commits;
  commits.batch_bytes = options.batch_bytes;
  commits.pending_bytes = options.pending_bytes;
  commits.credit_bytes = options.credit_bytes;
  commits.sync_bytes = options.sync_bytes;
  commits.pressure = self->pressure_.get();
  self->commits_ = std::make_unique<CommitQueue>(
      commits, self->store_.get(), &self->control_->gate(), clock,
      [process = self.get()](const absl::Status&) {
        if (process->alive_) process->failed_();
      });
  self->pool_ = std::make_unique<WorkerPool>(1, /*max_queued=*/1024);
  AgentService::Options agents;
  agents.run_session = [pool = self->pool_.get()](std::function<void()> task,
                                                  size_t bytes) {
    return pool->Run(std::move(task), bytes);
  };
  self->agents_ = std::make_unique<AgentService>(
      agents, &self->control_->agents(), &self->control_->gate(),
      self->commits_.get(), self->store_.get(), self->store_.get());
  self->ticker_ = ServiceThread([process = self.get()] { process->Tick(); });
  self->frees_early_ = options.frees_early;
  if (options.leaf) RP_RETURN_IF_ERROR(self->OpenSealer(clock));
  return self;
}

absl::Status CollectorProcess::OpenSealer(const Clock* clock) {
  SealerOptions sealing;
  sealing.directory = "/data/sealing";
  sealing.quiet_time = absl::Seconds(2);
  sealing.block_steps = 6;
  sealing.free_stored = true;
  sealing.keep_steps = 2;
  sealing.live = [this] {
    absl::flat_hash_set<uint64_t> live;
    const v1::ListAgentsResponse agents = control_->agents().List("");
    for (const v1::AgentInfo& agent : agents.agents()) {
      if (agent.connected()) live.insert(agent.identity().incarnation());
    }
    return live;
  };
  RP_ASSIGN_OR_RETURN(sealer_, Sealer::Open(std::move(sealing), store_.get(),
                                            &bucket_, &files_, clock));
  sealing_ = ServiceThread([this] { Seal(); });
  return absl::OkStatus();
}

void CollectorProcess::FreeEarly() {
  const auto steps = store_->ListSteps(kRun);
  if (!steps.ok() || steps->empty()) return;
  DeleteOptions options{.run = kRun, .steps = std::set<int64_t>()};
  for (const v1::StepInfo& info : *steps) {
    if (info.complete() && info.step() < steps->back().step())
      options.steps->insert(info.step());
  }
  options.reclaim = false;
  (void)store_->Delete(options);
}

void CollectorProcess::Seal() {
  while (!stop_.WaitFor(kSealEvery)) {
    if (frees_early_) FreeEarly();
    Sealer::Report report;
    // What cannot be stored now is tried again.
    (void)sealer_->SealReady([this] { return !alive_; }, &report);
    if (report.fenced) return;
  }
}

void CollectorProcess::Tick() {
  MonotonicTime next_look = MonotonicNow();
  while (!stop_.WaitFor(kTick)) {
    if (pressure_ != nullptr && MonotonicNow() >= next_look) {
      next_look = MonotonicAfter(kDiskLook);
      if (pressure_->Look()) commits_->TellPayloadCredit();
    }
    control_->Tick();
  }
}

void CollectorProcess::Kill() {
  alive_ = false;
  bucket_.Kill();
  files_.Kill();
}

void CollectorProcess::KillAtWrite(uint64_t count,
                                   std::function<void()> killed) {
  files_.KillAtWrite(count, [this, killed = std::move(killed)] {
    alive_ = false;
    bucket_.Kill();
    killed();
  });
}

void CollectorProcess::SayGoodbye() { control_->agents().Shutdown(); }

CollectorProcess::~CollectorProcess() {
  stop_.Set();
  if (ticker_.joinable()) ticker_.join();
  if (sealing_.joinable()) sealing_.join();
  sealer_.reset();
  pool_.reset();
  agents_.reset();
  commits_.reset();
  control_.reset();
  store_.reset();
  events_.reset();
}

}  // namespace rankprobe::sim
