// SPDX-License-Identifier: Apache-2.0
// State of a session's connection to a collector, and its messages to the user, each
// printed once on stderr.
//
// Ownership: the CollectorLink's; options and queue outlive it.
// Threads: all methods are thread-safe, except those marked [worker]. The queue's lock is
// taken under this one.
// Failure: only what it tells.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_LINK_STATUS_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_LINK_STATUS_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/session/session.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class LinkStatus {
 public:
  // How long a collector may take to answer before its absence is reported.
  static constexpr absl::Duration kSilence = absl::Milliseconds(900);

  LinkStatus(const SessionOptions& options, FrameQueue* queue)
      : options_(options), queue_(queue), identity_(options.identity) {}

  // See Session.
  absl::Status WaitConnected(absl::Duration deadline);
  void FillStats(SessionStats* stats) const;
  // ALREADY_EXISTS once another live process has this rank.
  absl::Status Refusal() const;
  // A collector has answered, if only to what a dead process left.
  bool EverHeard() const;
  // Frames are kept on disk.
  bool HasSpool() const {
    return !options_.spool_directory.empty() && !no_spool_;
  }
  v1::Identity identity() const;
  // False: it is this one already, or it `has_sent` records as another.
  bool SetRank(int64_t rank, int64_t world_size, bool has_sent);

  // As who it is.
  v1::Identity NoteConnected();
  void NoteHeard();
  // No step waits for it from now on.
  void NoteBroken();
  // Its connection is given up: it has acknowledged nothing for so long.
  void NoteSilent(absl::Duration waited);
  // A connection that was made has ended.
  void NoteGone();
  // False: a refusal that the connection before did not get. Without TLS a byte that
  // was damaged in the headers of the call can make one of any kind, and whatever
  // else is asked on that connection may get it too: it counts once a new connection
  // gets the same.
  bool NoteEnd(const grpc::Status& status, bool welcomed);
  void NoteError(const absl::Status& status);
  void NoteLane(const absl::Status& status);
  void NoteSpooled(uint64_t bytes);
  // It could not be opened.
  void NoteNoSpool() { no_spool_ = true; }

  // While there is no connection: reports it after a while.
  void TellIfSilent();
  // See Session.
  void TellStuck(absl::Duration waited) const;
  // For a person, of what is not delivered at the end.
  std::string WhyLost() const;
  void TellUndelivered(const v1::Undelivered& left) const;
  // [worker] Another process records under this name of the run: once. A process
  // without a rank waits for its first step, with which a framework may say one, or
  // for its end.
  void NoteOther(const v1::OtherProcess& other);
  void TellOther(bool stepped_or_ends);

 private:
  // For a line that says of whom it speaks; empty: no rank is known.
  std::string OfRank() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // " (the last error)", empty without one.
  std::string Why() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void TellOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports that a collector that was connected has been unreachable for a
  // while, and that records wait for it.
  void TellGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports that a collector that was missing or unreachable answers.
  void TellFound() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionOptions& options_;
  FrameQueue* const queue_;
  const MonotonicTime began_ = MonotonicNow();

  mutable absl::Mutex mutex_;
  // Notified when connected_ or fatal_ is set.
  MonotonicCondVar decided_;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  // The last connection was given up because nothing was heard on it.
  bool fell_silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool heard_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  bool found_ ABSL_GUARDED_BY(mutex_) = false;
  // When the last connection ended, and whether that was reported.
  std::optional<MonotonicTime> gone_since_ ABSL_GUARDED_BY(mutex_);
  bool told_gone_ ABSL_GUARDED_BY(mutex_) = false;
  // Records and payloads that were lost at the time of the report.
  uint64_t lost_when_gone_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);
  // By the last answer to a hello; OK: it was no refusal.
  absl::StatusCode refused_with_ ABSL_GUARDED_BY(mutex_) =
      absl::StatusCode::kOk;
  uint64_t reconnects_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  v1::Identity identity_ ABSL_GUARDED_BY(mutex_);
  uint64_t spooled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> no_spool_{false};
  std::string lane_ ABSL_GUARDED_BY(mutex_);
  // What TellOther has still to report. Only the worker uses it.
  std::optional<v1::OtherProcess> other_;
  // A root reports it again after a restart.
  bool told_other_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_LINK_STATUS_H_
