// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/distributions.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/session/collector_link.h"
#include "agent/runtime/session/event_outbox.h"
#include "agent/runtime/session/plan_switcher.h"
#include "agent/runtime/session/protobuf_log.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/base/blocked_signals.h"
#include "common/base/collector_address.h"
#include "common/base/fork_guard.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_reference.h"

namespace rankprobe {
namespace {

constexpr size_t kSecretBytes = 32;
// How long records that are in the file of their rank may stay unsent, so that
// fast steps are sent together.
constexpr absl::Duration kKeptHold = absl::Milliseconds(100);

absl::Status ParentsError() {
  return absl::FailedPreconditionError(
      "the session belongs to the parent process");
}

class SessionImpl final : public Session {
 public:
  SessionImpl(SessionOptions options, const Clock* clock)
      : options_(std::move(options)),
        clock_(clock),
        queue_(
            {options_.queue_budget_bytes, options_.max_payload_bytes,
             options_.policy, options_.block_deadline,
             !options_.spool_directory.empty(),
             options_.stop_barrier == StopBarrier::kKept,
             options_.remember_payloads, options_.lane,
             options_.stop_barrier == StopBarrier::kKept ? kKeptHold
                                                         : absl::ZeroDuration(),
             options_.silence_deadline},
            clock, [this] { outbox_.Wake(); }),
        watcher_(
            clock,
            [this](v1::AgentEvent event) { outbox_.Emit(std::move(event)); }),
        link_(options_, &gate_, &queue_, &watcher_, &outbox_) {}

  ~SessionImpl() override {
    if (Forked()) {
      link_.Abandon();
      return;
    }
    const bool ever = link_.status().EverHeard();
    // The link may not have seen yet that the last steps are requested.
    if (auto flight = watcher_.TakeLastFlight(); ever && flight.has_value()) {
      for (auto& records : flight->buffers)
        queue_.SubmitRecords(std::move(records));
    }
    // A collector that was connected may return. If none was ever reached, the
    // end of the job is delayed only briefly.
    const absl::Status drained = SessionImpl::Flush(
        v1::DURABILITY_COMMITTED,
        ever ? options_.drain_deadline
             : std::min(options_.drain_deadline, absl::Seconds(1)));
    // A refusal has been reported already.
    if (absl::IsDeadlineExceeded(drained)) {
      if (options_.stop_barrier == StopBarrier::kKept) {
        if (!link_.spool().Keep())
          link_.AccountAtEnd(/*spool_delivers=*/true);
        else if (!options_.spool_is_attended)
          link_.spool().TellLeft(queue_.Undelivered());
      } else if (link_.status().HasSpool()) {
        link_.spool().TellLeft(queue_.Undelivered());
      } else {
        link_.AccountAtEnd(/*spool_delivers=*/false);
      }
    }
    // After AccountAtEnd, because the worker ends once the outbox is stopped.
    outbox_.Stop();
    link_.Join();
  }

  absl::Status WaitConnected(absl::Duration deadline) override {
    return Forked() ? ParentsError() : link_.status().WaitConnected(deadline);
  }

  ActivePlan BeginStep(int64_t step) override {
    if (Forked()) return {};
    std::optional<v1::PlanApplied> applied;
    ActivePlan active = gate_.BeginStep(step, &applied);
    outbox_.NoteStep(step, active.enabled && active.plan != nullptr,
                     clock_->MonotonicNanos(), std::move(applied));
    return active;
  }

  bool BeginIdleStep(int64_t step) override {
    if (Forked() || !gate_.BeginIdleStep(step)) return false;
    outbox_.NoteStep(step, /*dumping=*/false, clock_->MonotonicNanos(),
                     std::nullopt);
    return true;
  }

  void SetLocalPlan(std::shared_ptr<const Plan> plan, bool enabled) override {
    if (!Forked()) gate_.SetLocal(std::move(plan), enabled);
  }

  void EditConfig(const ConfigEdit& edit, bool at_once) override {
    if (Forked()) return;
    gate_.Edit(edit.plan,
               edit.plan == nullptr ? std::nullopt : edit.plan->dump_enable,
               at_once);
    v1::ConfigEdited edited;
    edited.set_config_json(edit.config_json);
    edited.set_step(gate_.step());
    edited.set_path(edit.path);
    edited.set_fault(edit.fault);
    edited.set_seen_epoch(gate_.heard_epoch());
    link_.TellEdit(std::move(edited));
  }

  void RefuseRecording(const std::string& reason, bool only_apis) override {
    if (Forked()) return;
    gate_.RefuseRecording(reason, only_apis);
    if (only_apis) return;
    v1::ConfigEdited edited;
    edited.set_fault(reason);
    edited.set_cannot_record(true);
    link_.TellEdit(std::move(edited));
  }

  std::unique_ptr<PayloadBuffer> ReservePayload(
      uint64_t length_bytes, v1::LossReason* reason) override {
    if (reason != nullptr) *reason = v1::LOSS_REASON_PROCESS_EXIT;
    if (Forked()) return nullptr;
    return queue_.Reserve(length_bytes, reason);
  }

  void SubmitPayload(const std::array<uint8_t, 16>& digest,
                     std::unique_ptr<PayloadBuffer> payload) override {
    if (!Forked()) queue_.SubmitPayload(digest, std::move(payload));
  }

  bool KnowsPayload(const std::array<uint8_t, 16>& digest,
                    uint64_t length_bytes) override {
    return !Forked() && queue_.KnowsPayload(digest, length_bytes);
  }

  bool SubmitRecords(std::unique_ptr<RecordBuffer> records) override {
    return !Forked() && queue_.SubmitRecords(std::move(records));
  }

  void SetRank(int64_t rank, int64_t world_size) override {
    if (!Forked()) link_.SetRank(rank, world_size);
  }

  absl::Status Flush(v1::Durability level, absl::Duration deadline) override {
    if (Forked()) return absl::OkStatus();
    // The collector will never accept it.
    if (absl::Status refused = link_.status().Refusal(); !refused.ok())
      return refused;
    return queue_.Flush(level, deadline);
  }

  absl::Status FlushToSpool(absl::Duration deadline) override {
    // If records are kept, what Keep could not write does not reach the file
    // later: waiting would mean to wait for the collector.
    if (Forked() || options_.spool_directory.empty() ||
        options_.stop_barrier == StopBarrier::kKept)
      return absl::OkStatus();
    return queue_.FlushToSpool(deadline);
  }

  void TellStuck(absl::Duration waited) override {
    link_.status().TellStuck(waited);
  }

  bool Keep() override { return !Forked() && link_.spool().Keep(); }

  void SendEvent(v1::AgentEvent event) override {
    if (!Forked()) outbox_.Emit(std::move(event));
  }

  // The queue needs the other half for sending.
  uint64_t HoldLimitBytes() const override {
    return options_.queue_budget_bytes / 2;
  }

  absl::Status FetchReference(
      const v1::ReferenceRequest& request, absl::Duration deadline,
      const std::function<absl::Status(const v1::ReferenceChunk&)>& add)
      override {
    return Forked() ? ParentsError()
                    : link_.FetchReference(request, deadline, add);
  }

  TriggerWatcher* watcher() override { return Forked() ? nullptr : &watcher_; }

  SessionStats GetStats() const override {
    SessionStats stats;
    queue_.FillStats(&stats);
    link_.status().FillStats(&stats);
    return stats;
  }

 private:
  bool Forked() const { return fork_guard_.InChild(); }

  const SessionOptions options_;
  const Clock* const clock_;
  const ForkGuard fork_guard_;
  PlanSwitcher gate_;

  // Declared before the members that wake it, so that it outlives them.
  EventOutbox outbox_;
  FrameQueue queue_;
  TriggerWatcher watcher_;
  CollectorLink link_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(SessionOptions options,
                                                         const Clock* clock) {
  DropProtobufLinesAboutUs();
  if (options.collector.empty())
    return absl::InvalidArgumentError("no collector address (host:port)");
  RP_RETURN_IF_ERROR(CheckCollectorAddress(options.collector));
  if (!options.connect) RP_RETURN_IF_ERROR(GrpcReference::CheckUsable());
  if (options.identity.run().empty()) options.identity.set_run("default");
  if (options.identity.run().size() > 255)
    return absl::InvalidArgumentError("a run's name has at most 255 bytes");
  if (options.queue_budget_bytes < (1 << 20)) {
    return absl::InvalidArgumentError(
        "the queue budget must be at least 1 MiB");
  }
  if (options.identity.pid() == 0) options.identity.set_pid(::getpid());
  if (options.identity.incarnation() == 0) {
    RandomBits random;
    options.identity.set_incarnation(
        absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, UINT64_MAX));
  }
  if (options.incarnation_secret.empty())
    options.incarnation_secret = RandomBytes(kSecretBytes);
  if (options.on_missing == MissingCollector::kSpool &&
      options.spool_directory.empty()) {
    return absl::InvalidArgumentError(
        "on_collector_missing=spool needs a directory: RANKPROBE_SPOOL");
  }
  if (options.stop_barrier == StopBarrier::kKept &&
      options.spool_directory.empty()) {
    return absl::InvalidArgumentError(
        "RANKPROBE_STOP=kept needs a directory: RANKPROBE_SPOOL");
  }
  const bool fail = options.on_missing == MissingCollector::kFail;
  const absl::Duration deadline = options.missing_deadline;
  std::unique_ptr<SessionImpl> session;
  {
    const BlockedSignals blocked;  // in gRPC's threads, too
    session = std::make_unique<SessionImpl>(std::move(options), clock);
  }
  if (!fail) return session;
  if (const absl::Status status = session->WaitConnected(deadline);
      !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), " (on_collector_missing is fail)"));
  }
  return session;
}

}  // namespace rankprobe
