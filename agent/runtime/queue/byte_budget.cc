// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/byte_budget.h"

#include <algorithm>
#include <utility>

namespace rankprobe {
namespace {

// A collector that sent something this recently is not silent. If it
// acknowledges nothing, the queue asks it more often (TakeQuestion).
constexpr absl::Duration kHeardLately = absl::Seconds(1);
// Number of checks before a thread considers the collector silent: on busy
// processors the thread wakes up late, and so does the collector.
constexpr int kLooks = 4;

}  // namespace

v1::LossReason ByteBudget::Acquire(uint64_t bytes, uint64_t limit,
                                   bool may_wait) {
  if (shedding_ && used_ <= options_.bytes / 2) shedding_ = false;
  if (!HasRoom(bytes, limit)) {
    if (!may_wait || options_.policy != OverflowPolicy::kBlock || shedding_ ||
        bytes > limit)
      return v1::LOSS_REASON_AGENT_BUDGET;
    const v1::LossReason reason = Await([&] { return HasRoom(bytes, limit); });
    if (reason != v1::LOSS_REASON_UNSPECIFIED) {
      shedding_ = true;
      return reason;
    }
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return v1::LOSS_REASON_UNSPECIFIED;
}

bool ByteBudget::MayReservePayload() {
  // The credit "none" ends the wait as well.
  const auto decided = [this] {
    return payload_credit_ != v1::PAYLOAD_CREDIT_NOT_NOW;
  };
  if (!decided() && !waited_for_collector_ &&
      options_.policy == OverflowPolicy::kBlock)
    waited_for_collector_ = Await(decided) != v1::LOSS_REASON_UNSPECIFIED;
  return payload_credit_ == v1::PAYLOAD_CREDIT_TAKEN;
}

bool ByteBudget::SetPayloadCredit(v1::PayloadCredit credit) {
  if (credit == payload_credit_) return false;
  payload_credit_ = credit;
  if (credit == v1::PAYLOAD_CREDIT_TAKEN) waited_for_collector_ = false;
  TellWaiting();
  return true;
}

void ByteBudget::NoteEnded(bool silent) {
  const absl::Duration unheard =
      absl::Nanoseconds(clock_->MonotonicNanos() - heard_ns_);
  peer_ = silent && unheard > kHeardLately ? Peer::kSilent : Peer::kGone;
}

absl::Duration ByteBudget::UntilSilent(int64_t start_ns) const {
  switch (peer_) {
    case Peer::kGone:
      break;
    case Peer::kThere:
      return options_.silence_deadline -
             absl::Nanoseconds(clock_->MonotonicNanos() -
                               std::max(start_ns, heard_ns_));
    case Peer::kSilent:
      return absl::ZeroDuration();
  }
  return absl::InfiniteDuration();
}

v1::LossReason ByteBudget::Await(const std::function<bool()>& over) {
  const int64_t start_ns = clock_->MonotonicNanos();
  const MonotonicTime end = MonotonicAfter(options_.block_deadline);
  v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
  int64_t heard_ns = heard_ns_;
  int looks = 0;
  ++waiting_;
  while (!over()) {
    const absl::Duration rest = Until(end), silent = UntilSilent(start_ns);
    if (std::exchange(heard_ns, heard_ns_) != heard_ns_) looks = 0;
    if (peer_ == Peer::kSilent ||
        (silent <= absl::ZeroDuration() && looks >= kLooks)) {
      peer_ = Peer::kSilent;
      reason = v1::LOSS_REASON_COLLECTOR_SILENT;
      break;
    }
    if (rest <= absl::ZeroDuration()) {
      reason = v1::LOSS_REASON_AGENT_DEADLINE;
      break;
    }
    // The next ack may take long because the collector's disk is slow or full,
    // so ask for another response.
    asks_ = true;
    ask_();
    changed_.WaitFor(mutex_, std::min(rest, options_.silence_deadline / kLooks),
                     over);
    ++looks;
  }
  --waiting_;
  blocked_ns_ += static_cast<uint64_t>(clock_->MonotonicNanos() - start_ns);
  return reason;
}

void ByteBudget::FillStats(SessionStats* stats) const {
  stats->queue_bytes = used_;
  stats->queue_peak_bytes = peak_;
  stats->blocked_ns = blocked_ns_;
}

}  // namespace rankprobe
