// SPDX-License-Identifier: Apache-2.0
// Recorder::Stop, which ends the recording of a step, and its bounded waits.
#include <algorithm>

#include "absl/time/time.h"
#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {
namespace {

// Longest wait of Stop() for a collector that was stuck and commits again.
constexpr absl::Duration kPatienceWithStuck = absl::Seconds(1);
// Bounds of one wait, after which the collector's progress is looked at again.
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);
constexpr absl::Duration kLongestLook = absl::Milliseconds(250);

}  // namespace

bool Recorder::Stop(const std::function<absl::Duration()>& at_most) {
  if (Forked() || session_ == nullptr) return true;
  recording_.store(false, std::memory_order_relaxed);
  absl::Duration patience = options_.stop_deadline;
  {
    absl::MutexLock lock(&mutex_);
    if (!step_begun_) return true;
    Submit();
    if (flight_) return true;
    if (stuck_at_.has_value()) {
      // Its disk may be full. Later steps wait only when it commits again.
      patience = session_->GetStats().committed_sequence == *stuck_at_
                     ? absl::ZeroDuration()
                     : std::min(patience, kPatienceWithStuck);
    }
  }
  if (session_->Keep()) return true;
  const absl::Duration longest =
      at_most ? std::min(options_.stop_deadline, at_most())
              : options_.stop_deadline;
  patience = std::min(patience, longest);
  // Wait for COMMITTED while the collector answers.
  const int64_t begun_ns = clock_->MonotonicNanos();
  const auto waited = [&] {
    return absl::Nanoseconds(clock_->MonotonicNanos() - begun_ns);
  };
  SessionStats stats = session_->GetStats();
  while (stats.connected && waited() < patience &&
         stats.silence < options_.silence_deadline) {
    const absl::Duration rest =
        std::max(options_.silence_deadline - stats.silence, kShortestWait);
    const absl::Status status =
        session_->Flush(v1::DURABILITY_COMMITTED,
                        std::min({patience - waited(), rest, kLongestLook}));
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      stuck_at_.reset();
      return false;
    }
    stats = session_->GetStats();
  }
  // With a spool, what was not committed is kept for the next process.
  session_->FlushToSpool(longest).IgnoreError();
  if (!stats.connected) return false;
  bool newly;
  {
    absl::MutexLock lock(&mutex_);
    newly = !stuck_at_.has_value();
    stuck_at_ = stats.committed_sequence;
  }
  // A silent collector is reported when its connection is given up.
  if (newly && waited() > kPatienceWithStuck) session_->TellStuck(patience);
  return false;
}

}  // namespace rankprobe
