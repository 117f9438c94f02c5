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

// Beyond this number acks are queued, and a peer that does not read them is
// disconnected.
constexpr int kMaxDigestsInAck = 4096;
// Limit for one stream; the metrics count all of them.
constexpr uint64_t kRefusalsLogged = 3;
// Far above the number of frames that an agent can have sent since the last
// sync before a crash of the machine.
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
    // A rank that waits for room checks with a ping whether the collector is
    // alive. The answer does not depend on a lock or a disk.
    if (untrusted->has_ping()) {
      v1::Directive answer;
      answer.mutable_pong();
      handle()->Send(answer);
      return ReadNext();
    }
    // These events wait for the store.
    if (untrusted->has_rank_known() || untrusted->has_config_edited()) {
      return GoOnElsewhere(run_, untrusted->ByteSizeLong(), [this, untrusted] {
        sessions_->OnEvent(session_, *untrusted);
        return true;
      });
    }
    sessions_->OnEvent(session_, *untrusted);
    // The end of the stream confirms the goodbye to the process.
    if (untrusted->has_goodbye()) return FinishOnce(absl::OkStatus());
    ReadNext();
  }

  void OnGone() override {
    if (session_.empty()) return;
    // In this order, so that when the memory is forgotten the session is known
    // to have ended (Upload).
    sessions_->Disconnected(session_, "killed, or its connection is lost");
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

// Frames are read as bytes, because if gRPC cannot parse a message, it ends the
// stream.
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
    // If the bytes are not a frame, only its number may be known.
    if (!decoded.ok() && frame_->sequence() == 0) return Fail(decoded);
    if (const absl::Status status = CheckPlace(*frame_, next_sequence_);
        !status.ok())
      return Fail(status);
    const bool offers = frame_->has_offers();
    const bool is_next = offers || frame_->sequence() == next_sequence_;
    absl::Status content = decoded;
    uint64_t encoded = untrusted->Length();
    // Bytes of an earlier frame are not read, because their place may have been
    // reused.
    const bool on_lane = content.ok() && is_next && IsOnLane(*frame_);
    if (on_lane) {
      // The memory was dropped with the session. That is not a fault of the
      // frame, which is sent again when the rank reconnects.
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
    // Measured once, for admission, credit and commit.
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
      // If there is no room, nothing more is read: what gRPC's window does not
      // hold stays with the sender.
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

  // Acks supersede each other: only the newest numbers count.
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
    // Acks that only answer offers do not contain it.
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
    // The identity was verified in the session, so the one in this message is
    // not used.
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

  // Holds the session's memory as long as this stream reads.
  const SharedMemoryReader* Lane() {
    if (lane_ == nullptr && lanes_ != nullptr) lane_ = lanes_->Find(session_);
    return lane_.get();
  }

  // The frame was damaged in transit and is sent again on another stream.
  void Damaged(const absl::Status& status) {
    if (metrics_ != nullptr) ++metrics_->damaged_frames;
    Log("frame_damaged", next_sequence_, status);
    FinishOnce(status);
  }

  // Ends the stream with an error.
  void Fail(const absl::Status& status) {
    if (metrics_ != nullptr) ++metrics_->refused_frames;
    Log("upload_ended", next_sequence_, status);
    FinishOnce(status);
  }

  // Refuses the frame for good; the stream continues.
  bool Refuse(const absl::Status& status) {
    if (metrics_ != nullptr) ++metrics_->refused_frames;
    if (refused_++ < kRefusalsLogged)
      Log("frame_refused", frame_->sequence(), status);
    v1::RefusalRow refusal = RefusalOf(*frame_, status.message());
    // Frees the frame's memory now instead of when the next one arrives.
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

// Sends pieces that are already in memory. Deletes itself when gRPC has
// finished.
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
  // gRPC has authorized the call, so there is a principal.
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
