// SPDX-License-Identifier: Apache-2.0
// What goes wrong with the connection: kept for who asks, and said once.
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/runtime/session/collector_link.h"
#include "common/rpc/grpc_channel.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// One that takes connections may be slow.
constexpr absl::Duration kLongSilence = absl::Seconds(5);

}  // namespace

std::string CollectorLink::OfRank() const {
  return identity_.has_rank() ? absl::StrCat(" of rank ", identity_.rank())
                              : "";
}

// No step waits for it from now on.
void CollectorLink::NoteBroken() {
  absl::MutexLock lock(&mutex_);
  heard_ = heard_ || connected_;
  connected_ = false;
  queue_->NoteEnded(fell_silent_);
}

void CollectorLink::NoteError(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  last_error_ = std::string(status.message());
}

void CollectorLink::NoteEnd(const grpc::Status& status, bool welcomed) {
  absl::MutexLock lock(&mutex_);
  last_error_ = status.ok() ? "the collector ended the stream"
                            : std::string(FromGrpc(status).message());
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
          FromGrpc(status).message()));
      break;
    default:
      break;
  }
  decided_.NotifyAll();
  TellOnce();
}

// The collector may never take what it was sent; a network that fails has
// other codes.
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

// The one thing said to whoever started the training: it goes on, unwatched.
void CollectorLink::TellOnce() {
  if (told_) return;
  // A collector that was there comes back; frames wait for it.
  const absl::Duration patience = last_error_.empty() ? kLongSilence : kSilence;
  if (fatal_.ok() && (reconnects_ > 0 || Since(began_) < patience)) return;
  // That is an error of Session::Create.
  if (fatal_.ok() && options_.on_missing == MissingCollector::kFail) return;
  told_ = true;
  const std::string rank = OfRank();
  std::string why(fatal_.message());
  if (fatal_.ok()) {
    why = absl::StrCat("no collector at ", options_.collector,
                       last_error_.empty() ? "" : " (", last_error_,
                       last_error_.empty() ? "" : ")",
                       "; the agent keeps trying to connect");
  }
  // A refusal is for good; else frames wait for a collector that comes.
  const std::string what =
      HasSpool()    ? absl::StrCat("what is recorded", rank, " is kept in ",
                                   options_.spool_directory)
      : fatal_.ok() ? absl::StrCat("what is recorded", rank,
                                   " waits in this process, and is lost if "
                                   "that ends first")
                    : absl::StrCat("nothing", rank, " is recorded");
  const std::string line =
      absl::StrCat("rankprobe: ", what, ", training continues: ", why, "\n");
  std::fputs(line.c_str(), stderr);
}

void CollectorLink::TellGone() {
  if (told_gone_ || !gone_since_.has_value() || !fatal_.ok() ||
      Since(*gone_since_) < kSilence)
    return;
  SessionStats stats;
  queue_->FillStats(&stats);
  if (stats.queue_bytes == 0) return;
  told_gone_ = true;
  lost_when_gone_ = stats.lost_records + stats.lost_payloads;
  const std::string rank = OfRank();
  const std::string line = absl::StrCat(
      "rankprobe: the collector at ", options_.collector, " is unreachable",
      last_error_.empty() ? "" : " (", last_error_,
      last_error_.empty() ? "" : ")", "; what is recorded", rank,
      HasSpool() ? absl::StrCat(" is kept in ", options_.spool_directory)
                 : " waits in this process, and is lost if that ends first",
      "; training continues\n");
  std::fputs(line.c_str(), stderr);
}

void CollectorLink::NoteOther(const v1::OtherProcess& other) {
  if (options_.tell_other && !told_other_) other_ = other;
}

void CollectorLink::TellOther(bool ends) {
  if (!other_.has_value()) return;
  const v1::Identity& other = other_->identity();
  {
    absl::MutexLock lock(&mutex_);
    // A framework says its rank with the first step.
    if (!identity_.has_rank() && gate_->step() < 0 && !ends) return;
    if (identity_.has_rank() != other.has_rank()) return other_.reset();
  }
  const std::string who = absl::StrCat(
      other.has_rank() ? absl::StrCat("rank ", other.rank(), ", ") : "",
      "process ", other.pid(), " on ", VisibleText(other.host()));
  const std::string time = absl::FormatTime(
      "%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(other_->unix_ns()),
      absl::LocalTimeZone());
  const std::string run = VisibleText(other.run());
  const std::string line = absl::StrCat(
      "rankprobe: run ", run,
      other_->connected()
          ? absl::StrCat(" is recorded by another process, too: ", who,
                         ", connected since ", time)
          : absl::StrCat(" has records of an earlier job: ", who,
                         ", the last of them at ", time),
      other.has_rank() ? "; of a step that both recorded an export has this "
                         "process' records"
                       : "; the records of both are kept, each in a directory "
                         "proc{pid}",
      ". For a run of its own give it another name, by RANKPROBE_RUN or "
      "`rankprobe run --run NAME`\n");
  std::fputs(line.c_str(), stderr);
  told_other_ = true;
  other_.reset();
}

void CollectorLink::TellStuck(absl::Duration waited) {
  absl::MutexLock lock(&mutex_);
  const std::string rank = OfRank();
  const std::string line = absl::StrCat(
      "rankprobe: a step", rank, " waited ", absl::FormatDuration(waited),
      " for the collector at ", options_.collector,
      ", which accepts nothing (does it hang, is its disk full?); later steps "
      "do not wait until it continues\n");
  std::fputs(line.c_str(), stderr);
}

// A step may wait for what was damaged: it is sent again at once, as long as
// anything gets through.
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

// A length that was damaged on the way makes the other side wait for bytes that
// never come, and it has nothing to say meanwhile.
bool CollectorLink::IsSilent(absl::Duration waited) {
  if (waited <= ack_patience_) return false;
  NoteError(absl::DeadlineExceededError(
      absl::StrCat("the collector acknowledges none of the frames sent ",
                   absl::FormatDuration(waited), " ago")));
  {
    absl::MutexLock lock(&mutex_);
    fell_silent_ = true;
  }
  // It may be slow.
  ack_patience_ = std::min(ack_patience_ * 2, kMaxAckPatience);
  afresh_ = true;
  return true;
}

absl::Duration CollectorLink::UntilSilent() const {
  const absl::Duration waited = queue_->WaitingForAck();
  if (waited == absl::ZeroDuration()) return kTick;
  return std::clamp(ack_patience_ - waited, absl::Milliseconds(1), kTick);
}

void CollectorLink::TellFound() {
  gone_since_.reset();
  if (std::exchange(told_gone_, false)) {
    SessionStats stats;
    queue_->FillStats(&stats);
    const uint64_t lost =
        stats.lost_records + stats.lost_payloads - lost_when_gone_;
    const std::string line = absl::StrCat(
        "rankprobe: the collector at ", options_.collector,
        " is back; waiting records are sent",
        lost == 0 ? ""
                  : absl::StrCat("; for ", lost,
                                 " records and payloads there was no room, "
                                 "see rankprobe ledger"),
        "\n");
    std::fputs(line.c_str(), stderr);
  }
  if (!told_ || !fatal_.ok() || found_) return;
  found_ = true;
  const std::string line =
      absl::StrCat("rankprobe: the collector at ", options_.collector,
                   " is connected; queued records are sent\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace rankprobe
