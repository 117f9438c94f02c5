// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/collector_process.h"

#include <utility>

#include "common/base/status_macros.h"

namespace rankprobe::sim {
namespace {

// As server.cc.
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kDiskLook = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<CollectorProcess>> CollectorProcess::Start(
    const Options& options, FileSystem* disk, const Clock* clock,
    std::function<void()> failed) {
  std::unique_ptr<CollectorProcess> self(
      new CollectorProcess(disk, std::move(failed)));
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
  return self;
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
  files_.Kill();
}

void CollectorProcess::KillAtWrite(uint64_t count,
                                   std::function<void()> killed) {
  files_.KillAtWrite(count, [this, killed = std::move(killed)] {
    alive_ = false;
    killed();
  });
}

void CollectorProcess::SayGoodbye() { control_->agents().Shutdown(); }

CollectorProcess::~CollectorProcess() {
  stop_.Set();
  if (ticker_.joinable()) ticker_.join();
  pool_.reset();
  agents_.reset();
  commits_.reset();
  control_.reset();
  store_.reset();
  events_.reset();
}

}  // namespace rankprobe::sim
