// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/collector_link.h"

#include <algorithm>
#include <utility>

#include "absl/random/distributions.h"
#include "common/base/random_bytes.h"
#include "common/rpc/checked_message.h"
#include "common/rpc/grpc_channel.h"
#include "common/rpc/lane_socket.h"

namespace rankprobe {
namespace {

constexpr uint32_t kProtocol = 1;
constexpr int kMaxMessageBytes = 4 << 20;
constexpr absl::Duration kMaxLeafBackoff = absl::Seconds(1);
// How long a collector on this host may take to accept the memory.
constexpr absl::Duration kLanePatience = absl::Milliseconds(250);

// The buffer keeps the tail's owner until the transport has written it.
grpc::ByteBuffer ToByteBuffer(EncodedFrame frame) {
  using Owner = std::shared_ptr<const void>;
  if (frame.tail.empty()) {
    const grpc::Slice slice(frame.head + frame.foot);
    return grpc::ByteBuffer(&slice, 1);
  }
  grpc::Slice slices[3] = {grpc::Slice(frame.head), grpc::Slice(),
                           grpc::Slice(frame.foot)};
  slices[1] = grpc::Slice(
      const_cast<char*>(frame.tail.data()), frame.tail.size(),
      +[](void* owner) { delete static_cast<Owner*>(owner); },
      new Owner(std::move(frame.tail_owner)));
  return grpc::ByteBuffer(slices, 3);
}

// Whether the error may mean that the collector is unreachable. A refusal comes
// from a collector that runs.
bool IsAway(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return false;
    default:
      return true;
  }
}

std::shared_ptr<CollectorChannel> ConnectTo(const std::string& address,
                                            const SessionOptions& options,
                                            bool is_leaf) {
  if (options.connect) return options.connect(address);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // Keepalive pings detect a dead collector on an idle connection. Where
  // another leaf can take over, they are sent more often.
  PingWhileCalling(absl::Seconds(is_leaf ? 5.5 : 20),
                   absl::Seconds(is_leaf ? 3 : 10), &arguments);
  arguments.SetInt(
      GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.reconnect_min)));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(
      GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.reconnect_max)));
  // Otherwise channels with equal arguments would share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return MakeCollectorChannel(
      MakeChannel(address, options.security, arguments));
}

}  // namespace

CollectorLink::Target::Target(const std::string& to,
                              const SessionOptions& options, bool is_leaf)
    : address(to), is_leaf(is_leaf), channel(ConnectTo(to, options, is_leaf)) {}

CollectorLink::CollectorLink(const SessionOptions& options, PlanSwitcher* gate,
                             FrameQueue* queue, TriggerWatcher* watcher,
                             EventOutbox* outbox)
    : options_(options),
      gate_(gate),
      queue_(queue),
      watcher_(watcher),
      outbox_(outbox),
      status_(options, queue),
      spool_(options, queue, &status_),
      named_(std::make_shared<Target>(options.collector, options,
                                      /*is_leaf=*/false)),
      target_(named_),
      finder_(NewFinder()),
      worker_([this] { Work(); }) {}

// Takes no lock: a thread of the parent, which does not exist here, may hold
// it.
void CollectorLink::Abandon() {
  worker_.detach();
  named_->channel.reset();
}

absl::Status CollectorLink::FetchReference(
    const v1::ReferenceRequest& request, absl::Duration deadline,
    const std::function<absl::Status(const v1::ReferenceChunk&)>& add) {
  grpc::ClientContext context;
  AddToken(options_.security, &context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  std::shared_ptr<Target> target;
  {
    absl::MutexLock lock(&mutex_);
    target = target_;
  }
  const auto reader = target->channel->GetReference(&context, request);
  absl::Status status;
  for (v1::ReferenceChunk chunk; status.ok() && reader->Read(&chunk);)
    status = add(chunk);
  if (!status.ok()) context.TryCancel();
  const grpc::Status end = reader->Finish();
  return status.ok() ? FromGrpc(end) : status;
}

void CollectorLink::SetRank(int64_t rank, int64_t world_size) {
  v1::AgentEvent event;
  event.mutable_rank_known()->set_rank(rank);
  event.mutable_rank_known()->set_world_size(world_size);
  // If the hello in flight does not name the rank yet, this event follows it.
  if (status_.SetRank(rank, world_size, HasSent()))
    outbox_->Push(std::move(event));
}

void CollectorLink::TellEdit(v1::ConfigEdited edited) {
  v1::AgentEvent event;
  *event.mutable_config_edited() = edited;
  absl::MutexLock lock(&mutex_);
  edit_ = std::move(edited);
  outbox_->Push(std::move(event));
}

// The collector that received the edit may have ended before it stored the
// plan. One that has the edit recognizes it as the same.
void CollectorLink::TellEditAgain(const v1::Welcome& welcome) {
  absl::MutexLock lock(&mutex_);
  if (!edit_.has_value()) return;
  if (welcome.plan().epoch() > edit_->seen_epoch()) {
    edit_.reset();
    return;
  }
  v1::AgentEvent event;
  *event.mutable_config_edited() = *edit_;
  outbox_->Push(std::move(event));
}

bool CollectorLink::HasSent() const {
  SessionStats stats;
  queue_->FillStats(&stats);
  return stats.records > 0 || stats.payloads > 0;
}

void CollectorLink::Work() {
  spool_.Open();
  if (DrainOrphans()) StayConnected();
  spool_.Update();
  // The spool is updated before, because the farewell does not count what it
  // holds as lost.
  SayFarewell();
}

void CollectorLink::StayConnected() {
  absl::Duration backoff = options_.reconnect_min;
  RandomBits random;
  for (;;) {
    spool_.Update();
    const bool was_connected = RunConnection();
    status_.NoteBroken();
    if (outbox_->stopping()) return;
    if (was_connected) status_.NoteGone();
    backoff = was_connected ? options_.reconnect_min
                            : std::min(backoff * 2, options_.reconnect_max);
    if (std::exchange(damaged_, false)) backoff = AfterDamage();
    // Another leaf exists, or soon will.
    if (finder_.is_root()) backoff = std::min(backoff, kMaxLeafBackoff);
    // Jitter, so that a thousand ranks do not reconnect at the same moment.
    const MonotonicTime until =
        MonotonicAfter(backoff * absl::Uniform(random, 0.5, 1.5));
    while (MonotonicNow() < until) {
      spool_.Update();
      status_.TellIfSilent();
      if (!outbox_->Wait(std::min(Until(until), LinkStatus::kSilence / 2)))
        return;
    }
  }
}

v1::AgentEvent CollectorLink::HelloEvent() {
  v1::AgentEvent event;
  v1::Hello* hello = event.mutable_hello();
  *hello->mutable_identity() = status_.identity();
  hello->set_agent_version(options_.agent_version);
  hello->set_framework_version(options_.framework_version);
  hello->set_protocol(kProtocol);
  hello->set_config_json(options_.config_json);
  hello->set_config_path(options_.config_path);
  hello->set_incarnation_secret(options_.incarnation_secret);
  hello->set_step(gate_->step());
  hello->set_plan_epoch(gate_->epoch());
  hello->set_plan_digest(gate_->plan_digest());
  return event;
}

CollectorFinder CollectorLink::NewFinder() {
  absl::MutexLock lock(&mutex_);
  return CollectorFinder(
      named_->channel, options_.security, options_.replica,
      [this] { outbox_->Wake(); },
      [this](absl::Duration timeout) {
        spool_.Update();
        status_.TellIfSilent();
        return outbox_->Wait(timeout);
      });
}

absl::StatusOr<std::shared_ptr<CollectorLink::Target>> CollectorLink::Locate(
    CollectorFinder* finder, const v1::Identity& identity) {
  // If data was damaged in transit, the connection's own framing or header
  // tables may be affected too: later data may be wrong, or never arrive.
  const bool afresh = std::exchange(afresh_, false);
  {
    absl::MutexLock lock(&mutex_);
    if (afresh) {
      named_ = std::make_shared<Target>(options_.collector, options_,
                                        /*is_leaf=*/false);
    }
    finder->UseChannel(named_->channel);
  }
  const absl::StatusOr<std::string> address = finder->Find(identity);
  if (!address.ok()) {
    status_.NoteError(address.status());
    return address.status();
  }
  absl::MutexLock lock(&mutex_);
  if (address->empty()) {
    target_ = named_;
  } else if (afresh || !target_->is_leaf || target_->address != *address) {
    target_ = std::make_shared<Target>(*address, options_, /*is_leaf=*/true);
  }
  return target_;
}

// Runs one connection until it breaks or the session stops. Returns true if the
// collector has welcomed the session.
bool CollectorLink::RunConnection() {
  const absl::StatusOr<std::shared_ptr<Target>> located =
      Locate(&finder_, status_.identity());
  if (!located.ok()) return false;
  Target* const target = located->get();
  // Only with a root the process may move to another leaf, which lacks the
  // payloads that this one has.
  queue_->KeepUntilReferred(target->is_leaf);
  ControlStream control([this] { outbox_->Wake(); },
                        [this](const v1::Directive& directive) {
                          queue_->NoteHeard();
                          return !directive.has_pong();
                        });
  AddToken(options_.security, control.context());
  target->channel->Session(control.context(), &control);
  control.Start();
  control.Write(HelloEvent());

  std::unique_ptr<UploadStream> upload;
  bool welcomed = false, unwanted = false;
  const MonotonicTime began = MonotonicNow();
  MonotonicTime next_metrics = MonotonicAfter(kMetricsInterval);
  MonotonicTime hold_until;
  for (;;) {
    v1::Directive directive;
    while (control.Pop(&directive)) {
      if (directive.has_welcome()) {
        welcomed = welcomed_once_ = true;
        welcome_patience_ = kWelcomePatience;
        finder_.NoteReached();
        upload = OnWelcome(directive.welcome(), target);
      } else if (directive.has_goodbye()) {
        // The collector shuts down, or another process has the rank that has
        // become known; the next hello gets the reason.
        unwanted = true;
      } else {
        OnDirective(directive);
      }
    }
    v1::UploadAck ack;
    while (upload != nullptr && upload->Pop(&ack)) {
      if (ack.committed() > acked_) ack_patience_ = kAckPatience;
      acked_ = std::max(acked_, ack.committed());
      if (ack.retry_after_ms() > 0)
        hold_until = MonotonicAfter(absl::Milliseconds(ack.retry_after_ms()));
    }
    if (unwanted) break;
    spool_.Update();
    if (welcomed) ShipFlight();
    status_.TellOther(/*stepped_or_ends=*/gate_->step() >= 0);
    if (const absl::Status fault = queue_->AckFault();
        upload != nullptr && !fault.ok()) {
      status_.NoteError(fault);
      break;
    }
    if (upload == nullptr ? IsSilent(Since(began), &welcome_patience_)
                          : IsSilent(queue_->WaitingForAck(), &ack_patience_)) {
      status_.NoteBroken();
      break;
    }
    if (control.ended() || (upload != nullptr && upload->ended()))
      status_.NoteBroken();
    if (control.done() || (upload != nullptr && upload->done())) {
      NoteEnd(control.done() ? nullptr : upload.get(), control, welcomed);
      break;
    }
    if (welcomed && control.CanWrite()) {
      v1::AgentEvent event;
      if (NextEvent(&event, &next_metrics))
        control.Write(std::move(event), /*more=*/false);
    }
    if (upload != nullptr && upload->CanWrite() && MonotonicNow() >= hold_until)
      SendNext(upload.get());
    if (!welcomed) status_.TellIfSilent();
    if (!outbox_->Wait(welcomed ? std::min(UntilSilent(), queue_->HeldFor())
                                : absl::Milliseconds(200))) {
      status_.TellOther(/*stepped_or_ends=*/true);
      if (welcomed) {
        said_goodbye_ =
            SayGoodbye(&control, /*held=*/0, MonotonicAfter(kFarewellPatience));
      }
      break;
    }
  }
  if (upload != nullptr) upload->Close();
  control.Close();
  // A collector that refuses this process has been reached.
  if (!welcomed && IsAway(control.status())) finder_.NoteNotReached();
  return welcomed;
}

void CollectorLink::NoteEnd(const UploadStream* upload,
                            const ControlStream& control, bool welcomed) {
  const grpc::Status end =
      upload == nullptr ? control.status() : upload->status();
  const bool counts = status_.NoteEnd(end, welcomed);
  damaged_ = end.error_code() == grpc::StatusCode::DATA_LOSS || !counts;
  // gRPC itself reconnects after a connection has ended.
  afresh_ = !end.ok() && end.error_code() != grpc::StatusCode::UNAVAILABLE;
  if (upload != nullptr) NoteUploadEnd(end);
}

void CollectorLink::TryLane() {
  if (lane_session_.empty()) return;
  absl::Status status;
  const SharedMemory* const shared = queue_->memory()->shared();
  if (shared == nullptr) {
    status = queue_->memory()->shared_status();
    // There was no large block yet: try again with the next frame.
    if (status.ok()) return;
    lane_session_.clear();
    return status_.NoteLane(status);
  }
  const std::string session = std::exchange(lane_session_, "");
  status = HandOver(lane_socket_, session, shared->fd(), kLanePatience);
  queue_->UseLane(status.ok());
  status_.NoteLane(status);
}

void CollectorLink::SendNext(UploadStream* upload) {
  TryLane();
  v1::UploadFrame offers;
  if (EncodedFrame frame; queue_->NextOffers(offers.mutable_offers())) {
    upload->Write(ToCheckedBytes(offers));
  } else if (queue_->NextFrame(credit_, &frame)) {
    const bool followed = frame.followed;
    upload->Write(ToByteBuffer(std::move(frame)), followed || queue_->HasWork(),
                  followed);
  }
}

std::unique_ptr<CollectorLink::UploadStream> CollectorLink::OnWelcome(
    const v1::Welcome& welcome, Target* target) {
  if (welcome.has_plan()) gate_->Adopt(welcome.plan());
  TellEditAgain(welcome);
  watcher_->SetRunLevel(welcome.degrade());
  if (welcome.has_other()) status_.NoteOther(welcome.other());
  if (welcome.has_triggers()) watcher_->Configure(welcome.triggers());
  credit_ = std::max<uint64_t>(welcome.credit_bytes(), 1);
  queue_->UseOffers(welcome.takes_offers());
  // Memory must be shared with this collector before offsets are sent.
  queue_->UseLane(false);
  lane_socket_ = welcome.lane_socket();
  lane_session_ = options_.lane ? welcome.session_id() : "";
  // Before the upload starts, because Resume must not run concurrently with
  // Ack.
  queue_->Resume(welcome.resume_after_sequence());
  // Acks reach a barrier directly, without waking the worker.
  auto upload = std::make_unique<UploadStream>(
      [this] { outbox_->Wake(); },
      [this](const v1::UploadAck& ack) {
        if (ack.credit_bytes() > 0) credit_ = ack.credit_bytes();
        // A spool with payloads can delete files once they are committed.
        return queue_->Ack(ack) || ack.retry_after_ms() > 0 || ships_ ||
               (!options_.spool_directory.empty() && !spool_.keeps());
      });
  AddToken(options_.security, upload->context());
  target->channel->Upload(upload->context(), upload.get());
  upload->Start();
  v1::UploadFrame open;
  open.mutable_open()->set_session_id(welcome.session_id());
  open.mutable_open()->set_first_sequence(queue_->FirstSequence());
  *open.mutable_open()->mutable_identity() = status_.NoteConnected();
  upload->Write(ToCheckedBytes(open));
  return upload;
}

// The collector may refuse frames permanently; network errors have other status
// codes.
void CollectorLink::NoteUploadEnd(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      queue_->StreamEnded(status.ok() ? "no reason given"
                                      : FromGrpc(status).message());
      break;
    case grpc::StatusCode::DATA_LOSS:
      queue_->StreamEnded(FromGrpc(status).message(),
                          FrameQueue::End::kDamaged);
      break;
    default:
      break;
  }
}

// A step may wait for data that was damaged, so it is sent again at once, as
// long as anything gets through.
absl::Duration CollectorLink::AfterDamage() {
  SessionStats stats;
  queue_->FillStats(&stats);
  damaged_backoff_ =
      stats.committed_sequence > committed_when_damaged_
          ? kDamagedBackoff
          : std::min(damaged_backoff_ * 2, options_.reconnect_min);
  committed_when_damaged_ = stats.committed_sequence;
  return damaged_backoff_;
}

// If a length was damaged in transit, the other side waits for bytes that never
// come, and sends nothing meanwhile.
bool CollectorLink::IsSilent(absl::Duration waited, absl::Duration* patience) {
  if (waited <= *patience) return false;
  status_.NoteSilent(waited);
  // The collector may only be slow: be more patient next time.
  *patience = std::min(*patience * 2, kMaxAckPatience);
  afresh_ = true;
  return true;
}

absl::Duration CollectorLink::UntilSilent() const {
  const absl::Duration waited = queue_->WaitingForAck();
  if (waited == absl::ZeroDuration()) return kTick;
  return std::clamp(ack_patience_ - waited, absl::Milliseconds(1), kTick);
}

}  // namespace rankprobe
