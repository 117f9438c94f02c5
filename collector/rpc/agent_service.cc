// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/agent_service.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/auth/server_credentials.h"
#include "collector/ingest/frame_decoding.h"
#include "collector/ingest/frame_validator.h"
#include "collector/ingest/lane_payload.h"
#include "collector/ingest/received_frame.h"
#include "collector/ingest/reference_source.h"
#include "collector/ingest/refusal.h"
#include "collector/rpc/server_stream.h"
#include "common/rpc/checked_message.h"

namespace rankprobe {
namespace {

// Beyond it acks queue up, and a peer that does not read them is cut off.
constexpr int kMaxDigestsInAck = 4096;
// Of one stream; the metrics count them all.
constexpr uint64_t kRefusalsLogged = 3;
// Frames that an agent can have sent since the last sync that a machine took
// with it, and many more.
constexpr uint64_t kMaxLostFrames = uint64_t{1} << 28;

class SessionStream : public ServerStream<v1::AgentEvent, v1::Directive> {
 public:
  SessionStream(size_t max_queued, AgentSessions* sessions, LaneServer* lanes,
                Peer peer, Runner run, absl::Status refusal)
      : ServerStream(max_queued),
        sessions_(sessions),
        lanes_(lanes),
        run_(std::move(run)),
        refusal_(std::move(refusal)),
        peer_(std::move(peer)) {
    peer_.end = [handle = handle()](const absl::Status& status) {
      handle->End(status);
    };
    ReadNext();
  }

 protected:
  void OnMessage(v1::AgentEvent* untrusted) override {
    if (IsDamaged(*untrusted)) {
      return FinishOnce(absl::DataLossError(
          "a message of the rank was damaged in transit: it does not match its "
          "checksum"));
    }
    if (session_.empty()) {
      if (!untrusted->has_hello())
        return FinishOnce(
            absl::InvalidArgumentError("the first event is not a hello"));
      if (!refusal_.ok()) return Refuse(untrusted->hello().identity());
      return GoOnElsewhere(run_, untrusted->ByteSizeLong(),
                           [this, untrusted] { return Admit(untrusted); });
    }
    if (untrusted->has_hello())
      return FinishOnce(absl::InvalidArgumentError("a second hello"));
    // A rank that waits for room asks whether the collector is there. No lock and
    // no disk keeps the answer back.
    if (untrusted->has_ping()) {
      v1::Directive answer;
      answer.mutable_pong();
      handle()->Send(answer);
      return ReadNext();
    }
    // These wait for the store.
    if (untrusted->has_rank_known() || untrusted->has_config_edited()) {
      return GoOnElsewhere(run_, untrusted->ByteSizeLong(), [this, untrusted] {
        sessions_->OnEvent(session_, *untrusted);
        return true;
      });
    }
    sessions_->OnEvent(session_, *untrusted);
    // So that the process knows it was heard.
    if (untrusted->has_goodbye()) return FinishOnce(absl::OkStatus());
    ReadNext();
  }

  void OnGone() override {
    if (session_.empty()) return;
    // In this order: whose memory is forgotten is known to be gone (Upload).
    sessions_->Disconnected(session_, "the stream ended");
    if (lanes_ != nullptr) lanes_->Forget(session_);
  }

 private:
  void Refuse(const v1::Identity& untrusted) {
    absl::Status status = peer_.principal.MayBe(
        untrusted.run(), untrusted.has_rank()
                             ? std::optional<int64_t>(untrusted.rank())
                             : std::nullopt);
    status.Update(refusal_);
    FinishOnce(status);
  }

  bool Admit(v1::AgentEvent* untrusted) {
    absl::StatusOr<AgentSessions::Admission> admission = sessions_->Admit(
        untrusted->hello(),
        [handle = handle()](const v1::Directive& directive) {
          handle->Send(directive);
        },
        peer_);
    if (!admission.ok()) {
      FinishOnce(admission.status());
      return false;
    }
    session_ = admission->welcome.session_id();
    v1::Directive directive;
    *directive.mutable_welcome() = std::move(admission->welcome);
    if (lanes_ != nullptr) {
      lanes_->Expect(session_);
      directive.mutable_welcome()->set_lane_socket(lanes_->name());
    }
    handle()->Send(directive);
    return true;
  }

  AgentSessions* const sessions_;
  LaneServer* const lanes_;
  const Runner run_;
  const absl::Status refusal_;
  Peer peer_;
  std::string session_;
};

// Frames are read as bytes: what gRPC cannot parse it drops with the stream.
class UploadStream
    : public ServerStream<grpc::ByteBuffer, v1::UploadAck, grpc::ByteBuffer> {
 public:
  UploadStream(IngestGate* gate, CommitQueue* commits, RunRegistry* registry,
               const LaneServer* lanes, IngestMetrics* metrics,
               const Logger* logger, Principal principal, Runner run)
      : ServerStream(/*max_queued=*/64),
        gate_(gate),
        commits_(commits),
        registry_(registry),
        lanes_(lanes),
        metrics_(metrics),
        logger_(logger),
        principal_(std::move(principal)),
        run_(std::move(run)) {
    ReadNext();
  }

 protected:
  void OnMessage(grpc::ByteBuffer* untrusted) override {
    frame_ = ReceivedFrame();
    bool data_checked = false;
    const absl::Status decoded =
        DecodeFrame(untrusted, frame_.get(), &data_checked);
    if (absl::IsDataLoss(decoded)) return Damaged(decoded);
    if (upload_ == 0) {
      if (!decoded.ok()) return Fail(decoded);
      return GoOnElsewhere(run_, untrusted->Length(),
                           [this] { return Open(*frame_); });
    }
    // Of bytes that are no frame only the number is known.
    if (!decoded.ok() && frame_->sequence() == 0) return Fail(decoded);
    if (const absl::Status status = CheckPlace(*frame_, next_sequence_);
        !status.ok())
      return Fail(status);
    const bool offers = frame_->has_offers();
    const bool is_next = offers || frame_->sequence() == next_sequence_;
    absl::Status content = decoded;
    uint64_t encoded = untrusted->Length();
    // Of what came before nothing is wanted, and its place may be another's.
    const bool on_lane = content.ok() && is_next && IsOnLane(*frame_);
    if (on_lane) {
      // What was handed over has gone with the session: that is not a fault of the
      // frame's, which is sent again when the rank comes back.
      if (Lane() == nullptr && lanes_ != nullptr &&
          !gate_->Find(session_, principal_).ok()) {
        return Fail(absl::FailedPreconditionError(
            "a chunk lies in shared memory of a session that has ended"));
      }
      content = TakeFromLane(Lane(), frame_.get());
      encoded += frame_->chunk().data().size();
      if (metrics_ != nullptr)
        metrics_->lane_bytes += frame_->chunk().data().size();
    }
    // Measured once: admission, credit and commit go by it.
    const FrameSize size = SizeOf(frame_, encoded);
    if (content.ok())
      content = CheckContent(*frame_, size, on_lane || data_checked);
    if (offers && !content.ok()) return Fail(content);
    if (metrics_ != nullptr) {
      ++metrics_->accepted_frames;
      metrics_->accepted_bytes += encoded;
      if (!is_next) ++metrics_->duplicate_frames;
    }
    if (is_next) {
      if (!offers) ++next_sequence_;
      // What does not fit stays with the sender: gRPC's window is the limit.
      if (!(content.ok() ? commits_->Submit(upload_, std::move(frame_), size)
                         : Refuse(content)))
        return;
    } else {
      frame_ = ReceivedFrame();
    }
    ReadNext();
  }

  void OnGone() override {
    if (upload_ != 0) commits_->Remove(upload_);
  }

  // Acks overtake each other: only the newest numbers count.
  bool Merge(v1::UploadAck* queued, const v1::UploadAck& next) override {
    if (queued->have_digests_size() + queued->coming_digests_size() +
            queued->wanted_digests_size() + queued->refused_frames_size() >
        kMaxDigestsInAck)
      return false;
    queued->set_received(std::max(queued->received(), next.received()));
    queued->set_committed(std::max(queued->committed(), next.committed()));
    queued->set_synced(std::max(queued->synced(), next.synced()));
    if (next.credit_bytes() > 0) queued->set_credit_bytes(next.credit_bytes());
    if (next.payload_credit() != v1::PAYLOAD_CREDIT_UNSPECIFIED)
      queued->set_payload_credit(next.payload_credit());
    // Only what answers offers says nothing of it.
    if (next.received() > 0 || next.retry_after_ms() > 0)
      queued->set_retry_after_ms(next.retry_after_ms());
    queued->mutable_have_digests()->MergeFrom(next.have_digests());
    queued->mutable_coming_digests()->MergeFrom(next.coming_digests());
    queued->mutable_wanted_digests()->MergeFrom(next.wanted_digests());
    queued->mutable_refused_frames()->MergeFrom(next.refused_frames());
    return true;
  }

 private:
  bool Open(const v1::UploadFrame& frame) {
    const absl::Status status = TryOpen(frame);
    if (!status.ok()) FinishOnce(status);
    return status.ok();
  }

  absl::Status TryOpen(const v1::UploadFrame& frame) {
    if (!frame.has_open()) {
      absl::Status status = absl::InvalidArgumentError(
          "the first frame does not open the upload");
      Fail(status);
      return status;
    }
    if (commits_ == nullptr) {
      return absl::FailedPreconditionError(
          "this collector takes no frames of ranks: it serves an archive, or "
          "is a root, whose leaves take them");
    }
    // Who the agent is was settled in its session; what it says here is not
    // asked.
    const absl::StatusOr<IngestGate::SessionInfo> session =
        gate_->Find(frame.open().session_id(), principal_);
    if (!session.ok()) {
      return absl::FailedPreconditionError(
          "the upload names a session that is not open");
    }
    const v1::Identity& identity = session->identity;
    const absl::StatusOr<OpenedIncarnation> opened =
        registry_->OpenIncarnation(identity, IncarnationClaim());
    if (!opened.ok()) return opened.status();
    uint64_t committed = opened->committed;
    const uint64_t first = frame.open().first_sequence();
    if (first > committed + 1) {
      if (first - committed > kMaxLostFrames) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the upload begins at frame ", first, " and the collector has ",
            committed, ": too many frames are missing in between"));
      }
      if (const absl::Status status =
              registry_->NoteLostFrames(identity, first - 1);
          !status.ok())
        return status;
      committed = first - 1;
    }
    next_sequence_ = committed + 1;
    identity_ = identity;
    session_ = frame.open().session_id();
    upload_ = commits_->Add(
        frame.open().session_id(), identity, session->principal, committed,
        {[handle = handle()](const v1::UploadAck& ack) { handle->Send(ack); },
         [handle = handle()](const absl::Status& status) {
           handle->End(status);
         },
         [handle = handle()] { handle->Resume(); }},
        opened->refusals);
    return absl::OkStatus();
  }

  // What the session has handed over stays while this stream is read.
  const SharedMemoryReader* Lane() {
    if (lane_ == nullptr && lanes_ != nullptr) lane_ = lanes_->Find(session_);
    return lane_.get();
  }

  // It is sent again, on another stream.
  void Damaged(const absl::Status& status) {
    if (metrics_ != nullptr) ++metrics_->damaged_frames;
    Log("frame_damaged", next_sequence_, status);
    FinishOnce(status);
  }

  // The stream cannot go on.
  void Fail(const absl::Status& status) {
    if (metrics_ != nullptr) ++metrics_->refused_frames;
    Log("upload_ended", next_sequence_, status);
    FinishOnce(status);
  }

  // Nothing of it is wanted, now or later; the stream goes on.
  bool Refuse(const absl::Status& status) {
    if (metrics_ != nullptr) ++metrics_->refused_frames;
    if (refused_++ < kRefusalsLogged)
      Log("frame_refused", frame_->sequence(), status);
    v1::RefusalRow refusal = RefusalOf(*frame_, status.message());
    // What it took is not kept until the next one comes.
    frame_ = ReceivedFrame();
    return commits_->Refuse(upload_, std::move(refusal));
  }

  void Log(absl::string_view event, uint64_t sequence,
           const absl::Status& status) const {
    if (logger_ == nullptr) return;
    logger_->Info(event, {{"run", identity_.run()},
                          {"host", identity_.host()},
                          {"pid", absl::StrCat(identity_.pid())},
                          {"sequence", absl::StrCat(sequence)},
                          {"status", status.ToString()}});
  }

  IngestGate* const gate_;
  CommitQueue* const commits_;
  RunRegistry* const registry_;
  const LaneServer* const lanes_;
  IngestMetrics* const metrics_;
  const Logger* const logger_;
  const Principal principal_;
  const Runner run_;
  ReceivedFrame frame_;
  v1::Identity identity_;
  std::string session_;
  std::shared_ptr<const SharedMemoryReader> lane_;
  uint64_t refused_ = 0;
  uint64_t upload_ = 0;
  uint64_t next_sequence_ = 1;
};

// Sends pieces that are there already. gRPC keeps it until it is finished.
class ReferenceStream : public grpc::ServerWriteReactor<v1::ReferenceChunk> {
 public:
  void Answer(absl::StatusOr<std::vector<v1::ReferenceChunk>> chunks) {
    if (!chunks.ok()) return End(chunks.status());
    chunks_ = *std::move(chunks);
    Next();
  }
  void End(const absl::Status& status) { Finish(ToGrpc(status)); }

 private:
  void Next() {
    if (next_ == chunks_.size()) return End(absl::OkStatus());
    StartWrite(&chunks_[next_++]);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the agent has disconnected"));
    Next();
  }
  void OnDone() override { delete this; }

  std::vector<v1::ReferenceChunk> chunks_;
  size_t next_ = 0;
};

}  // namespace

Peer AgentService::PeerOf(const grpc::CallbackServerContext& context) const {
  Peer peer;
  peer.address = context.peer();
  if (authorizer_ == nullptr || authorizer_->open()) return peer;
  // gRPC has checked it: without a principal no call comes so far.
  peer.anonymous = false;
  peer.principal = authorizer_->Identify(CredentialsOf(context))
                       .value_or(Principal::Of(Role::kViewer, "nobody"));
  return peer;
}

grpc::ServerWriteReactor<v1::ReferenceChunk>* AgentService::GetReference(
    grpc::CallbackServerContext* context, const v1::ReferenceRequest* request) {
  auto* const stream = new ReferenceStream();
  if (const absl::Status status = PeerOf(*context).principal.MayReadReference(
          request->run(), request->has_rank()
                              ? std::optional<int64_t>(request->rank())
                              : std::nullopt);
      !status.ok()) {
    stream->End(status);
    return stream;
  }
  auto work = [archive = archive_, stream, request = *request] {
    stream->Answer(ReadReference(archive, request));
  };
  if (options_.run == nullptr) {
    work();
  } else if (!options_.run(std::move(work))) {
    stream->End(
        absl::ResourceExhaustedError("too many calls are waiting; try again"));
  }
  return stream;
}

grpc::ServerBidiReactor<v1::AgentEvent, v1::Directive>* AgentService::Session(
    grpc::CallbackServerContext* context) {
  return new SessionStream(options_.max_queued_directives, sessions_,
                           options_.lanes, PeerOf(*context),
                           options_.run_session, options_.refusal);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
AgentService::Upload(grpc::CallbackServerContext* context) {
  return new UploadStream(gate_, commits_, registry_, options_.lanes,
                          options_.metrics, options_.logger,
                          PeerOf(*context).principal, options_.run_session);
}

}  // namespace rankprobe
