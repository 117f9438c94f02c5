// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/spool_drain.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/checked_message.h"
#include "common/rpc/grpc_channel.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

grpc::ByteBuffer ToByteBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

bool IsDamage(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::DATA_LOSS;
}

// The replacement for a frame that was given up.
grpc::ByteBuffer Undeliverable(const OrphanSpool::Frame& frame) {
  v1::UploadFrame was, now;
  was.ParseFromString(frame.bytes);
  now.set_sequence(frame.sequence);
  v1::UndeliverableFrame& what = *now.mutable_undeliverable();
  what.set_reason(FrameSuspect::kDamaged);
  if (was.has_chunk()) {
    what.set_payload_digest(was.chunk().digest());
    what.set_payload_bytes(was.chunk().length_bytes());
  } else if (was.has_batch()) {
    what.set_step(was.batch().step());
    what.set_records(static_cast<uint64_t>(was.batch().records_size()));
  }
  return ToCheckedBytes(now);
}

absl::Status EndOf(const grpc::Status& status) {
  // An end without an error is not a success before everything is committed.
  if (status.ok()) return absl::UnavailableError("the stream has ended");
  // Frames that were damaged in transit are sent again.
  if (IsDamage(status))
    return absl::UnavailableError(FromGrpc(status).message());
  return FromGrpc(status);
}

}  // namespace

absl::Status SpoolDrain::Run(CollectorChannel* channel, OrphanSpool* spool) {
  ControlStream control(wake_);
  AddToken(security_, control.context());
  channel->Session(control.context(), &control);
  v1::AgentEvent event;
  *event.mutable_hello()->mutable_identity() = spool->identity();
  event.mutable_hello()->set_incarnation_secret(spool->secret());
  event.mutable_hello()->set_agent_version(agent_version_);
  event.mutable_hello()->set_protocol(1);
  control.Start();
  control.Write(std::move(event));
  v1::Directive directive;
  absl::Status status;
  while (status.ok() && !directive.has_welcome()) {
    if (control.Pop(&directive)) continue;
    if (control.done()) {
      status = EndOf(control.status());
    } else if (!wait_(kTick)) {
      status = absl::CancelledError("the session stops");
    }
  }
  if (status.ok()) {
    welcomed_();
    UploadStream upload(wake_);
    AddToken(security_, upload.context());
    channel->Upload(upload.context(), &upload);
    upload.Start();
    status = Deliver(spool, &control, &upload, directive.welcome());
    upload.Close();
  }
  // Everything that the process recorded has arrived. Without a goodbye the
  // collector reports that it does not know.
  if (status.ok()) SayGoodbye(&control);
  control.Close();
  RP_RETURN_IF_ERROR(status);
  return spool->Remove();
}

void SpoolDrain::SayGoodbye(ControlStream* control) {
  v1::AgentEvent event;
  event.mutable_goodbye()->set_reason("its spool is delivered");
  const MonotonicTime until = MonotonicAfter(kTick);
  while (!control->CanWrite() && !control->done() && MonotonicNow() < until &&
         wait_(kTick)) {
  }
  if (!control->CanWrite()) return;
  control->Write(std::move(event));
  while (!control->done() && MonotonicNow() < until && wait_(kTick)) {
  }
}

absl::Status SpoolDrain::Deliver(OrphanSpool* spool, ControlStream* control,
                                 UploadStream* upload,
                                 const v1::Welcome& welcome) {
  spool->Rewind();
  absl::StatusOr<OrphanSpool::Frame> next = spool->Next();
  v1::UploadFrame open;
  open.mutable_open()->set_session_id(welcome.session_id());
  *open.mutable_open()->mutable_identity() = spool->identity();
  if (next.ok()) open.mutable_open()->set_first_sequence(next->sequence);
  upload->Write(ToCheckedBytes(open));
  uint64_t committed = welcome.resume_after_sequence(), last = 0;
  uint64_t credit = std::max<uint64_t>(welcome.credit_bytes(), 1);
  uint64_t in_flight = 0;
  std::deque<std::pair<uint64_t, uint64_t>> sent;  // sequence, bytes
  for (;;) {
    v1::UploadAck ack;
    while (upload->Pop(&ack)) {
      committed = std::max(committed, ack.committed());
      if (ack.credit_bytes() > 0) credit = ack.credit_bytes();
      // The collector's ledger has them, and no process is left to be notified.
      // The first ack names those of earlier connections again.
      for (const v1::RefusedFrame& refused : ack.refused_frames()) {
        if (refused.sequence() <= told_refusal_) continue;
        told_refusal_ = refused.sequence();
        const std::string line = absl::StrCat(
            "rankprobe: the collector refuses frame ", refused.sequence(),
            " of the spool of process ", spool->identity().pid(),
            ", it is lost: ", VisibleText(refused.reason().substr(0, 500)),
            "\n");
        std::fputs(line.c_str(), stderr);
      }
    }
    while (!sent.empty() && sent.front().first <= committed) {
      in_flight -= sent.front().second;
      sent.pop_front();
    }
    if (next.ok() && next->sequence <= committed) {
      last = next->sequence;
      next = spool->Next();
      continue;
    }
    if (!next.ok() && !absl::IsNotFound(next.status())) return next.status();
    if (!next.ok() && committed >= last) return absl::OkStatus();
    if (upload->done()) {
      if (IsDamage(upload->status()) && !sent.empty() &&
          suspect_.NoteEnd(sent.front().first, sent.back().first,
                           FrameSuspect::kMaxDamages))
        given_up_ = sent.front().first;
      return EndOf(upload->status());
    }
    if (control->done()) return EndOf(control->status());
    // One frame may always be in flight, however small the credit is.
    if (next.ok() && upload->CanWrite() &&
        (in_flight == 0 || (!suspect_.GoesAlone(next->sequence) &&
                            in_flight + next->bytes.size() <= credit))) {
      in_flight += next->bytes.size();
      sent.emplace_back(next->sequence, next->bytes.size());
      last = next->sequence;
      upload->Write(next->sequence == given_up_ ? Undeliverable(*next)
                                                : ToByteBuffer(next->bytes));
      next = spool->Next();
      continue;
    }
    if (!wait_(kTick)) return absl::CancelledError("the session stops");
  }
}

}  // namespace rankprobe
