#include "agent/runtime/session.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/bidi_stream.h"
#include "agent/runtime/frame_queue.h"
#include "agent/runtime/plan_gate.h"
#include "agent/runtime/spool.h"
#include "agent/runtime/spool_drain.h"
#include "agent/runtime/watcher.h"
#include "common/file_system.h"
#include "common/fork_guard.h"
#include "common/grpc_channel.h"
#include "common/host_port.h"
#include "common/status_macros.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {
namespace {

constexpr uint32_t kProtocol = 1;
constexpr absl::Duration kMetricsInterval = absl::Seconds(2);
constexpr size_t kMaxEvents = 10000;
constexpr int kMaxMessageBytes = 4 << 20;
constexpr char kUploadMethod[] = "/rankprobe.v1.AgentService/Upload";

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

// The tail's owner goes along until the transport has written it.
grpc::ByteBuffer ToByteBuffer(EncodedFrame frame) {
  using Owner = std::shared_ptr<const void>;
  grpc::Slice slices[2] = {grpc::Slice(frame.head), grpc::Slice()};
  if (frame.tail.empty()) return grpc::ByteBuffer(slices, 1);
  slices[1] = grpc::Slice(
      const_cast<char*>(frame.tail.data()), frame.tail.size(),
      +[](void* owner) { delete static_cast<Owner*>(owner); },
      new Owner(std::move(frame.tail_owner)));
  return grpc::ByteBuffer(slices, 2);
}

std::shared_ptr<grpc::Channel> ConnectTo(const SessionOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A dead collector is noticed even when nothing is sent.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(
      GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.reconnect_min)));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(
      GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.reconnect_max)));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return MakeChannel(options.collector, options.security, arguments);
}

class SessionImpl final : public Session {
 public:
  SessionImpl(SessionOptions options, const Clock* clock)
      : options_(std::move(options)),
        clock_(clock),
        identity_(options_.identity),
        queue_({options_.queue_budget_bytes, options_.max_payload_bytes,
                options_.policy, options_.block_deadline,
                !options_.spool_directory.empty(), options_.remember_payloads},
               clock, [this] { Wake(); }),
        watcher_(clock,
                 [this](v1::AgentEvent event) { Emit(std::move(event)); }),
        channel_(ConnectTo(options_)),
        stub_(v1::AgentService::NewStub(channel_)),
        upload_stub_(channel_),
        worker_([this] { Work(); }) {}

  ~SessionImpl() override {
    if (Forked()) {
      // The threads are the parent's: nothing here may be joined or closed.
      worker_.detach();
      channel_.reset();
      return;
    }
    bool ever = false;
    {
      absl::MutexLock lock(&mutex_);
      ever = connected_ || reconnects_ > 0;
    }
    if (ever && watcher_.ship_at_exit()) {
      for (auto& records : watcher_.TakeFlight().buffers)
        queue_.SubmitRecords(std::move(records));
    }
    // A collector that was there may come back; one that never was keeps the
    // job from ending for a moment only.
    SessionImpl::Flush(
        v1::DURABILITY_COMMITTED,
        ever ? options_.drain_deadline
             : std::min(options_.drain_deadline, absl::Seconds(1)))
        .IgnoreError();
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      wake_ = true;
    }
    worker_.join();
  }

  absl::Status WaitConnected(absl::Duration deadline) override {
    if (Forked())
      return absl::FailedPreconditionError(
          "the session belongs to the parent process");
    absl::MutexLock lock(&mutex_);
    const auto decided = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return connected_ || !fatal_.ok();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&decided), deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("no collector at ", options_.collector, " after ",
                       absl::FormatDuration(deadline),
                       last_error_.empty() ? "" : ": ", last_error_));
    }
    return fatal_;
  }

  ActivePlan BeginStep(int64_t step) override {
    if (Forked()) return {};
    std::optional<v1::PlanApplied> applied;
    ActivePlan active = gate_.BeginStep(step, &applied);
    const int64_t now = clock_->MonotonicNanos();
    {
      absl::MutexLock lock(&mutex_);
      if (applied.has_value()) {
        v1::AgentEvent event;
        *event.mutable_applied() = *applied;
        events_.push_back(std::move(event));
      }
      v1::StepProgress progress;
      progress.set_step(step);
      progress.set_dumping(active.enabled && active.plan != nullptr);
      if (step_began_ns_ > 0) progress.set_last_step_ns(now - step_began_ns_);
      step_began_ns_ = now;
      progress_ = progress;
      wake_ = true;
    }
    return active;
  }

  void SetLocalPlan(std::shared_ptr<const Plan> plan, bool enabled) override {
    if (!Forked()) gate_.SetLocal(std::move(plan), enabled);
  }

  std::unique_ptr<PayloadBuffer> ReservePayload(
      uint64_t length_bytes, v1::LossReason* reason) override {
    *reason = v1::LOSS_REASON_PROCESS_EXIT;
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
    if (Forked()) return;
    absl::MutexLock lock(&mutex_);
    if (identity_.has_rank() && identity_.rank() == rank) return;
    identity_.set_rank(rank);
    identity_.set_world_size(world_size);
    v1::AgentEvent event;
    event.mutable_rank_known()->set_rank(rank);
    event.mutable_rank_known()->set_world_size(world_size);
    events_.push_back(std::move(event));
    wake_ = true;
  }

  absl::Status Flush(v1::Durability level, absl::Duration deadline) override {
    if (Forked()) return absl::OkStatus();
    return queue_.Flush(level, deadline);
  }

  void SendEvent(v1::AgentEvent event) override {
    if (!Forked()) Emit(std::move(event));
  }

  // The queue keeps the other half to send with.
  uint64_t HoldLimitBytes() const override {
    return options_.queue_budget_bytes / 2;
  }

  absl::Status FetchBench(
      const v1::BenchRequest& request, absl::Duration deadline,
      const std::function<absl::Status(const v1::BenchChunk&)>& add) override {
    if (Forked())
      return absl::FailedPreconditionError(
          "the session belongs to the parent process");
    grpc::ClientContext context;
    AddToken(options_.security, &context);
    context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    const auto reader = stub_->GetBench(&context, request);
    absl::Status status;
    for (v1::BenchChunk chunk; status.ok() && reader->Read(&chunk);)
      status = add(chunk);
    if (!status.ok()) context.TryCancel();
    const grpc::Status end = reader->Finish();
    return status.ok() ? FromGrpc(end) : status;
  }

  Watcher* watcher() override { return Forked() ? nullptr : &watcher_; }

  SessionStats GetStats() const override {
    SessionStats stats;
    queue_.FillStats(&stats);
    absl::MutexLock lock(&mutex_);
    stats.connected = connected_;
    stats.reconnects = reconnects_;
    stats.spool_bytes = spooled_bytes_;
    stats.last_error = last_error_;
    return stats;
  }

 private:
  using ControlStream = BidiStream<v1::AgentEvent, v1::Directive>;
  // Frames are encoded by the queue, payload bytes not copied.
  using UploadStream = BidiStream<grpc::ByteBuffer, v1::UploadAck>;

  bool Forked() const { return fork_guard_.InChild(); }

  void Wake() {
    absl::MutexLock lock(&mutex_);
    wake_ = true;
  }

  // What the watcher has to say. Bounded: an agent that cannot reach its
  // collector forgets.
  void Emit(v1::AgentEvent event) {
    absl::MutexLock lock(&mutex_);
    if (events_.size() < kMaxEvents) events_.push_back(std::move(event));
    wake_ = true;
  }

  // Sends what the flight recorder held, as far as there is room: this thread
  // is the one that makes room, so it does not wait for it.
  void ShipFlight() {
    if (!shipping_.has_value()) {
      shipping_ = watcher_.TakeRequestedFlight();
      shipped_buffers_ = 0;
    }
    if (!shipping_.has_value()) return;
    std::vector<std::unique_ptr<RecordBuffer>>& buffers = shipping_->buffers;
    while (shipped_buffers_ < buffers.size() &&
           queue_.HasRoomFor(buffers[shipped_buffers_]->ApproxBytes())) {
      queue_.SubmitRecords(std::move(buffers[shipped_buffers_++]),
                           /*may_wait=*/false);
    }
    if (shipped_buffers_ < buffers.size()) return;
    v1::AgentEvent event;
    event.mutable_flight()->set_steps(shipping_->steps);
    event.mutable_flight()->set_first_step(shipping_->first_step);
    event.mutable_flight()->set_last_step(shipping_->last_step);
    shipping_.reset();
    Emit(std::move(event));
  }

  // Waits for something to do, at most `timeout`; false when stopping.
  bool WaitForWork(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&wake_), timeout);
    wake_ = false;
    return !stopping_;
  }

  // What earlier lives left behind goes first: their sequence numbers and
  // their ranks are their own. False when stopping.
  bool DrainOrphans() {
    if (options_.spool_directory.empty()) return true;
    SpoolDrain drain(
        stub_.get(), &upload_stub_, options_.agent_version, [this] { Wake(); },
        [this](absl::Duration timeout) {
          SpoolFrames();
          return WaitForWork(timeout);
        });
    for (const auto& orphan :
         OrphanSpool::Find(options_.spool_directory, file_system_.get())) {
      absl::Status status;
      for (;;) {
        status = drain.Run(orphan.get());
        if (!absl::IsUnavailable(status)) break;
        NoteError(status);
        if (!WaitForWork(options_.reconnect_max)) return false;
      }
      if (absl::IsCancelled(status)) return false;
      // Refused: it stays for another time.
      if (!status.ok()) NoteError(status);
    }
    return true;
  }

  void NoteError(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    last_error_ = std::string(status.message());
  }

  // Puts new frames on disk.
  void SpoolFrames() {
    if (spool_ == nullptr) return;
    EncodedFrame frame;
    while (queue_.NextUnspooled(&frame)) {
      if (const absl::Status status =
              spool_->Append(frame.sequence, frame.head, frame.tail);
          !status.ok())
        NoteError(status);
    }
    SessionStats stats;
    queue_.FillStats(&stats);
    spool_->Committed(stats.committed_sequence);
    absl::MutexLock lock(&mutex_);
    spooled_bytes_ = spool_->bytes();
  }

  void OpenSpool() {
    if (options_.spool_directory.empty()) return;
    v1::Identity identity;
    {
      absl::MutexLock lock(&mutex_);
      identity = identity_;
    }
    absl::StatusOr<std::unique_ptr<Spool>> spool =
        Spool::Open({options_.spool_directory, options_.spool_bytes}, identity,
                    file_system_.get());
    if (spool.ok()) {
      spool_ = *std::move(spool);
    } else {
      NoteError(spool.status());
    }
  }

  void Work() {
    OpenSpool();
    if (DrainOrphans()) StayConnected();
    SpoolFrames();
  }

  void StayConnected() {
    absl::Duration backoff = options_.reconnect_min;
    absl::BitGen random;
    for (;;) {
      SpoolFrames();
      const bool was_connected = RunConnection();
      {
        absl::MutexLock lock(&mutex_);
        connected_ = false;
        if (stopping_) return;
        if (was_connected) ++reconnects_;
      }
      backoff = was_connected ? options_.reconnect_min
                              : std::min(backoff * 2, options_.reconnect_max);
      // Jitter: a thousand ranks must not come back in the same moment.
      const absl::Time until =
          absl::Now() + backoff * absl::Uniform(random, 0.5, 1.5);
      while (absl::Now() < until) {
        SpoolFrames();
        if (!WaitForWork(until - absl::Now())) return;
      }
    }
  }

  // One life of the connection, until it breaks or the session stops. True if
  // the collector had welcomed us.
  bool RunConnection() {
    ControlStream control([this] { Wake(); });
    AddToken(options_.security, control.context());
    stub_->async()->Session(control.context(), &control);
    v1::AgentEvent hello_event;
    v1::Hello* hello = hello_event.mutable_hello();
    {
      absl::MutexLock lock(&mutex_);
      *hello->mutable_identity() = identity_;
    }
    hello->set_agent_version(options_.agent_version);
    hello->set_framework_version(options_.framework_version);
    hello->set_protocol(kProtocol);
    hello->set_config_json(options_.config_json);
    hello->set_step(gate_.step());
    hello->set_plan_epoch(gate_.epoch());
    control.Start();
    control.Write(std::move(hello_event));

    std::unique_ptr<UploadStream> upload;
    uint64_t credit = 0;
    bool welcomed = false;
    absl::Time next_metrics = absl::Now() + kMetricsInterval;
    absl::Time hold_until = absl::InfinitePast();
    for (;;) {
      v1::Directive directive;
      while (control.Pop(&directive)) {
        if (directive.has_welcome()) {
          welcomed = true;
          upload = OnWelcome(directive.welcome(), &credit);
        } else {
          OnDirective(directive);
        }
      }
      v1::UploadAck ack;
      while (upload != nullptr && upload->Pop(&ack)) {
        if (ack.credit_bytes() > 0) credit = ack.credit_bytes();
        if (ack.retry_after_ms() > 0)
          hold_until = absl::Now() + absl::Milliseconds(ack.retry_after_ms());
        queue_.Ack(ack);
      }
      SpoolFrames();
      if (welcomed) ShipFlight();
      if (control.done() || (upload != nullptr && upload->done())) {
        NoteEnd(control.done() ? control.status() : upload->status(), welcomed);
        break;
      }
      if (welcomed && control.CanWrite()) {
        v1::AgentEvent event;
        if (NextEvent(&event, &next_metrics)) control.Write(std::move(event));
      }
      if (EncodedFrame frame; upload != nullptr && upload->CanWrite() &&
                              absl::Now() >= hold_until &&
                              queue_.NextFrame(credit, &frame))
        upload->Write(ToByteBuffer(std::move(frame)));
      if (!WaitForWork(absl::Milliseconds(500))) {
        if (welcomed && control.CanWrite()) {
          v1::AgentEvent event;
          event.mutable_goodbye()->set_reason("process ends");
          control.Write(std::move(event));
          // Give the farewell a moment to leave.
          for (int i = 0; i < 20 && !control.CanWrite() && !control.done();
               ++i) {
            absl::MutexLock lock(&mutex_);
            mutex_.AwaitWithTimeout(absl::Condition(&wake_),
                                    absl::Milliseconds(25));
            wake_ = false;
          }
        }
        break;
      }
    }
    if (upload != nullptr) upload->Close();
    control.Close();
    return welcomed;
  }

  std::unique_ptr<UploadStream> OnWelcome(const v1::Welcome& welcome,
                                          uint64_t* credit) {
    if (welcome.has_plan()) gate_.Adopt(welcome.plan());
    watcher_.SetRunLevel(welcome.degrade());
    if (welcome.has_watch()) watcher_.Configure(welcome.watch());
    *credit = std::max<uint64_t>(welcome.credit_bytes(), 1);
    queue_.Resume(welcome.resume_after_sequence());
    auto upload = std::make_unique<UploadStream>([this] { Wake(); });
    AddToken(options_.security, upload->context());
    upload_stub_.PrepareBidiStreamingCall(upload->context(), kUploadMethod, {},
                                          upload.get());
    upload->Start();
    v1::UploadFrame open;
    open.mutable_open()->set_session_id(welcome.session_id());
    open.mutable_open()->set_first_sequence(queue_.FirstSequence());
    {
      absl::MutexLock lock(&mutex_);
      *open.mutable_open()->mutable_identity() = identity_;
      connected_ = true;
      last_error_.clear();
    }
    const grpc::Slice bytes(open.SerializeAsString());
    upload->Write(grpc::ByteBuffer(&bytes, 1));
    return upload;
  }

  void OnDirective(const v1::Directive& directive) {
    v1::AgentEvent event;
    switch (directive.directive_case()) {
      case v1::Directive::kPrepare:
        *event.mutable_prepared() = gate_.Prepare(directive.prepare().plan());
        break;
      case v1::Directive::kCommit:
        if (const auto late = gate_.Commit(directive.commit().epoch());
            late.has_value()) {
          *event.mutable_prepared() = *late;
        }
        break;
      case v1::Directive::kAbort:
        gate_.Abort(directive.abort().epoch());
        break;
      case v1::Directive::kWatch:
        watcher_.Configure(directive.watch());
        break;
      case v1::Directive::kShipFlight:
        watcher_.RequestFlight();
        break;
      case v1::Directive::kReportCalls:
        *event.mutable_calls() =
            watcher_.ReportCalls(directive.report_calls().id());
        break;
      case v1::Directive::kDegrade:
        watcher_.SetRunLevel(directive.degrade().level());
        break;
      default:
        break;
    }
    if (event.event_case() == v1::AgentEvent::EVENT_NOT_SET) return;
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }

  bool NextEvent(v1::AgentEvent* event, absl::Time* next_metrics) {
    {
      absl::MutexLock lock(&mutex_);
      if (!events_.empty()) {
        *event = std::move(events_.front());
        events_.pop_front();
        wake_ = true;
        return true;
      }
      if (progress_.has_value()) {
        *event->mutable_progress() = *progress_;
        progress_.reset();
        return true;
      }
    }
    if (absl::Now() < *next_metrics) return false;
    *next_metrics = absl::Now() + kMetricsInterval;
    queue_.Trim();
    const SessionStats stats = GetStats();
    v1::AgentMetrics* metrics = event->mutable_metrics();
    metrics->set_queue_bytes(stats.queue_bytes);
    metrics->set_queue_budget_bytes(options_.queue_budget_bytes);
    metrics->set_records(stats.records);
    metrics->set_payloads(stats.payloads);
    metrics->set_payload_bytes(stats.payload_bytes);
    metrics->set_lost_records(stats.lost_records);
    metrics->set_lost_payloads(stats.lost_payloads);
    metrics->set_reconnects(stats.reconnects);
    return true;
  }

  void NoteEnd(const grpc::Status& status, bool welcomed) {
    absl::MutexLock lock(&mutex_);
    last_error_ =
        status.ok() ? "the collector ended the stream" : status.error_message();
    if (welcomed) return;
    // Refusals that another try will not change, as long as the other side
    // stays what it is. The worker still tries again: it may be replaced.
    switch (status.error_code()) {
      case grpc::StatusCode::ALREADY_EXISTS:
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::UNAUTHENTICATED:
      case grpc::StatusCode::PERMISSION_DENIED:
        fatal_ = FromGrpc(status);
        break;
      case grpc::StatusCode::UNIMPLEMENTED:
      case grpc::StatusCode::FAILED_PRECONDITION:
        fatal_ = absl::FailedPreconditionError(absl::StrCat(
            options_.collector, " is not a compatible rankprobe collector: ",
            status.error_message()));
        break;
      default:
        break;
    }
  }

  const SessionOptions options_;
  const Clock* const clock_;
  const ForkGuard fork_guard_;
  PlanGate gate_;

  mutable absl::Mutex mutex_;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);
  uint64_t reconnects_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  v1::Identity identity_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::AgentEvent> events_ ABSL_GUARDED_BY(mutex_);
  // Only the newest step matters.
  std::optional<v1::StepProgress> progress_ ABSL_GUARDED_BY(mutex_);
  int64_t step_began_ns_ ABSL_GUARDED_BY(mutex_) = 0;

  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  // Of the worker.
  std::unique_ptr<Spool> spool_;
  uint64_t spooled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  FrameQueue queue_;
  Watcher watcher_;
  // Worker thread only: what the flight recorder held and is being sent.
  std::optional<FlightRing::Contents> shipping_;
  size_t shipped_buffers_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::UploadAck> upload_stub_;
  std::thread worker_;
};

}  // namespace

RecordBuffer::RecordBuffer()
    : arena_([] {
        google::protobuf::ArenaOptions options;
        options.start_block_size = 4 << 10;
        options.max_block_size = 64 << 10;
        return std::make_unique<google::protobuf::Arena>(options);
      }()),
      batch_(google::protobuf::Arena::CreateMessage<v1::RecordBatch>(
          arena_.get())) {}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(SessionOptions options,
                                                         const Clock* clock) {
  if (options.collector.empty())
    return absl::InvalidArgumentError("no collector address (host:port)");
  RP_RETURN_IF_ERROR(ParseHostPort(options.collector, /*min_port=*/1).status());
  if (options.identity.run().empty()) options.identity.set_run("default");
  if (options.identity.run().size() > 255)
    return absl::InvalidArgumentError("a run's name has at most 255 bytes");
  if (options.queue_budget_bytes < (1 << 20)) {
    return absl::InvalidArgumentError(
        "the queue budget must be at least 1 MiB");
  }
  if (options.identity.pid() == 0) options.identity.set_pid(::getpid());
  if (options.identity.incarnation() == 0) {
    absl::BitGen random;
    options.identity.set_incarnation(
        absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, UINT64_MAX));
  }
  return std::make_unique<SessionImpl>(std::move(options), clock);
}

}  // namespace rankprobe
