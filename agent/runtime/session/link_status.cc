// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/link_status.h"

#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/collector_address.h"
#include "common/rpc/grpc_channel.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A collector that accepts connections may be slow.
constexpr absl::Duration kLongSilence = absl::Seconds(5);

void Tell(const std::string& text) {
  const std::string line = absl::StrCat("rankprobe: ", text, "\n");
  std::fputs(line.c_str(), stderr);
}

// The error for an answer that will not change as long as the other side stays
// the same. The worker still tries again, because it may be replaced.
absl::Status RefusalOf(const grpc::Status& status,
                       const std::string& collector) {
  switch (status.error_code()) {
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return FromGrpc(status);
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::FAILED_PRECONDITION:
      return absl::FailedPreconditionError(
          absl::StrCat(collector, " is not a compatible rankprobe collector: ",
                       FromGrpc(status).message()));
    default:
      return absl::OkStatus();
  }
}

}  // namespace

absl::Status LinkStatus::WaitConnected(absl::Duration deadline) {
  absl::MutexLock lock(&mutex_);
  const auto decided = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return connected_ || !fatal_.ok();
  };
  if (!decided_.WaitFor(&mutex_, deadline, decided)) {
    return absl::DeadlineExceededError(
        absl::StrCat("no collector at ", options_.collector, " after ",
                     absl::FormatDuration(deadline),
                     last_error_.empty() ? "" : ": ", last_error_));
  }
  return fatal_;
}

absl::Status LinkStatus::Refusal() const {
  absl::MutexLock lock(&mutex_);
  return !connected_ && absl::IsAlreadyExists(fatal_) ? fatal_
                                                      : absl::OkStatus();
}

void LinkStatus::FillStats(SessionStats* stats) const {
  absl::MutexLock lock(&mutex_);
  stats->connected = connected_;
  if (fell_silent_) stats->silence = absl::InfiniteDuration();
  stats->reconnects = reconnects_;
  stats->spool_bytes = spooled_bytes_;
  stats->last_error = last_error_;
  stats->lane = lane_;
}

bool LinkStatus::EverHeard() const {
  absl::MutexLock lock(&mutex_);
  return connected_ || heard_ || reconnects_ > 0;
}

v1::Identity LinkStatus::identity() const {
  absl::MutexLock lock(&mutex_);
  return identity_;
}

bool LinkStatus::SetRank(int64_t rank, int64_t world_size, bool has_sent) {
  absl::MutexLock lock(&mutex_);
  if (identity_.has_rank() && identity_.rank() == rank) return false;
  // Existing records belong to this rank, and the collector keeps them so.
  if (identity_.has_rank() && has_sent) {
    last_error_ = absl::StrCat(
        "this process is rank ", identity_.rank(),
        "; it has sent records as that rank, and cannot become rank ", rank);
    return false;
  }
  identity_.set_rank(rank);
  identity_.set_world_size(world_size);
  return true;
}

v1::Identity LinkStatus::NoteConnected() {
  absl::MutexLock lock(&mutex_);
  connected_ = true;
  fell_silent_ = false;
  lane_.clear();
  refused_with_ = absl::StatusCode::kOk;
  fatal_ = absl::OkStatus();
  last_error_.clear();
  decided_.NotifyAll();
  TellFound();
  return identity_;
}

void LinkStatus::NoteHeard() {
  absl::MutexLock lock(&mutex_);
  heard_ = true;
}

void LinkStatus::NoteBroken() {
  absl::MutexLock lock(&mutex_);
  heard_ = heard_ || connected_;
  connected_ = false;
  queue_->NoteEnded(fell_silent_);
}

void LinkStatus::NoteSilent(absl::Duration waited) {
  absl::MutexLock lock(&mutex_);
  refused_with_ = absl::StatusCode::kOk;
  fell_silent_ = true;
  last_error_ =
      absl::StrCat("the collector acknowledges none of the frames sent ",
                   absl::FormatDuration(waited), " ago");
}

void LinkStatus::NoteGone() {
  absl::MutexLock lock(&mutex_);
  ++reconnects_;
  gone_since_ = MonotonicNow();
}

void LinkStatus::NoteError(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  refused_with_ = absl::StatusCode::kOk;
  last_error_ = WhyNotReached(status.message());
}

bool LinkStatus::NoteEnd(const grpc::Status& status, bool welcomed) {
  absl::MutexLock lock(&mutex_);
  last_error_ = status.ok() ? "the collector ended the stream"
                            : WhyNotReached(FromGrpc(status).message());
  if (welcomed) return true;
  const absl::Status refusal = RefusalOf(status, options_.collector);
  const bool is_first = !refusal.ok() && refusal.code() != refused_with_;
  refused_with_ = refusal.code();
  if (is_first) return false;
  if (!refusal.ok()) fatal_ = refusal;
  decided_.NotifyAll();
  TellOnce();
  return true;
}

void LinkStatus::NoteLane(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  lane_ = status.ok() ? "shared memory"
                      : absl::StrCat("the connection: ", status.message());
}

void LinkStatus::NoteSpooled(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  spooled_bytes_ = bytes;
}

void LinkStatus::TellIfSilent() {
  absl::MutexLock lock(&mutex_);
  if (connected_) return;
  TellOnce();
  TellGone();
}

std::string LinkStatus::OfRank() const {
  return identity_.has_rank() ? absl::StrCat(" of rank ", identity_.rank())
                              : "";
}

std::string LinkStatus::Why() const {
  return last_error_.empty() ? "" : absl::StrCat(" (", last_error_, ")");
}

// The only message about a missing collector to the user: the training
// continues without recording.
void LinkStatus::TellOnce() {
  // A refusal counts only after a second connection has got it.
  if (told_ || (fatal_.ok() && refused_with_ != absl::StatusCode::kOk)) return;
  // A collector that was connected is expected back; frames wait for it.
  const absl::Duration patience = last_error_.empty() ? kLongSilence : kSilence;
  if (fatal_.ok() && (reconnects_ > 0 || Since(began_) < patience)) return;
  // Session::Create returns that as an error.
  if (fatal_.ok() && options_.on_missing == MissingCollector::kFail) return;
  told_ = true;
  const std::string rank = OfRank();
  // A refusal is permanent; otherwise frames wait for a collector.
  Tell(absl::StrCat(
      HasSpool()    ? absl::StrCat("what is recorded", rank, " is kept in ",
                                   options_.spool_directory)
      : fatal_.ok() ? absl::StrCat("what is recorded", rank,
                                   " waits in this process, and is lost if "
                                   "that ends first")
                    : absl::StrCat("nothing", rank, " is recorded"),
      ", training continues: ",
      fatal_.ok() ? absl::StrCat("no collector at ", options_.collector, Why(),
                                 "; the agent keeps trying to connect")
                  : std::string(fatal_.message())));
}

void LinkStatus::TellGone() {
  if (told_gone_ || !gone_since_.has_value() || !fatal_.ok() ||
      Since(*gone_since_) < kSilence)
    return;
  SessionStats stats;
  queue_->FillStats(&stats);
  if (stats.queue_bytes == 0) return;
  told_gone_ = true;
  lost_when_gone_ = stats.lost_records + stats.lost_payloads;
  Tell(absl::StrCat(
      "the collector at ", options_.collector, " is unreachable", Why(),
      "; what is recorded", OfRank(),
      HasSpool() ? absl::StrCat(" is kept in ", options_.spool_directory)
                 : " waits in this process, and is lost if that ends first",
      "; training continues"));
}

void LinkStatus::TellFound() {
  gone_since_.reset();
  if (std::exchange(told_gone_, false)) {
    SessionStats stats;
    queue_->FillStats(&stats);
    const uint64_t lost =
        stats.lost_records + stats.lost_payloads - lost_when_gone_;
    Tell(absl::StrCat("the collector at ", options_.collector,
                      " is back; waiting records are sent",
                      lost == 0
                          ? ""
                          : absl::StrCat("; for ", lost,
                                         " records and payloads there was no "
                                         "room, see rankprobe ledger")));
  }
  if (!told_ || !fatal_.ok() || found_) return;
  found_ = true;
  Tell(absl::StrCat("the collector at ", options_.collector,
                    " is connected; queued records are sent"));
}

void LinkStatus::NoteOther(const v1::OtherProcess& other) {
  if (options_.tell_other && !told_other_) other_ = other;
}

void LinkStatus::TellOther(bool stepped_or_ends) {
  if (!other_.has_value()) return;
  const v1::Identity& other = other_->identity();
  {
    absl::MutexLock lock(&mutex_);
    // A framework sets its rank with the first step.
    if (!identity_.has_rank() && !stepped_or_ends) return;
    if (identity_.has_rank() != other.has_rank()) return other_.reset();
  }
  const std::string who = absl::StrCat(
      other.has_rank() ? absl::StrCat("rank ", other.rank(), ", ") : "",
      "process ", other.pid(), " on ", VisibleText(other.host()));
  const std::string time = absl::FormatTime(
      "%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(other_->unix_ns()),
      absl::LocalTimeZone());
  Tell(absl::StrCat(
      "run ", VisibleText(other.run()),
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
      "`rankprobe run --run NAME`"));
  told_other_ = true;
  other_.reset();
}

void LinkStatus::TellStuck(absl::Duration waited) const {
  absl::MutexLock lock(&mutex_);
  Tell(absl::StrCat(
      "a step", OfRank(), " waited ", absl::FormatDuration(waited),
      " for the collector at ", options_.collector,
      ", which accepts nothing (does it hang, is its disk full?); later steps "
      "do not wait until it continues"));
}

std::string LinkStatus::WhyLost() const {
  absl::MutexLock lock(&mutex_);
  const std::string deadline = absl::FormatDuration(options_.drain_deadline);
  if (connected_)
    return absl::StrCat("the collector took no more within ", deadline,
                        " (is its disk full?)");
  return last_error_.empty()
             ? absl::StrCat("no answer from ", options_.collector, " within ",
                            deadline)
             : last_error_;
}

void LinkStatus::TellUndelivered(const v1::Undelivered& left) const {
  // Everything was delivered at the last moment.
  if (left.records() + left.payloads() == 0) return;
  absl::MutexLock lock(&mutex_);
  Tell(absl::StrCat(
      left.records(), " records and ", left.payloads(), " payloads (",
      left.payload_bytes(), " bytes)",
      left.has_first_step() ? absl::StrCat(" of steps ", left.first_step(),
                                           " to ", left.last_step())
                            : "",
      OfRank(), " are lost, the process ends before the collector has them: ",
      left.reason(),
      absl::StrContains(left.reason(), options_.collector)
          ? ""
          : absl::StrCat(" (", options_.collector, ")")));
}

}  // namespace rankprobe
