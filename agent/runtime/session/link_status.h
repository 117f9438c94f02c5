// SPDX-License-Identifier: Apache-2.0
// State of a session's connection to a collector, and its messages to the user,
// each printed once on stderr.
//
// Ownership: the CollectorLink's; options and queue outlive it.
// Threads: all methods are thread-safe, except those marked [worker]. The
// queue's lock is taken while this one is held.
// Failure: none; failures of the connection are reported.
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

  // See Session::WaitConnected.
  absl::Status WaitConnected(absl::Duration deadline);
  void FillStats(SessionStats* stats) const;
  // ALREADY_EXISTS once another live process has this rank.
  absl::Status Refusal() const;
  // Whether a collector has answered, if only to the delivery of a dead
  // process' spool.
  bool EverHeard() const;
  // Whether frames are kept on disk.
  bool HasSpool() const {
    return !options_.spool_directory.empty() && !no_spool_;
  }
  v1::Identity identity() const;
  // Returns false if the identity is already this one, or if the process
  // `has_sent` records under another.
  bool SetRank(int64_t rank, int64_t world_size, bool has_sent);

  // Returns the identity to connect with.
  v1::Identity NoteConnected();
  // A collector has answered, also if only to the delivery of a spool.
  void NoteHeard();
  // From now on no step waits for the collector.
  void NoteBroken();
  // The connection was given up because nothing was acknowledged for `waited`.
  void NoteSilent(absl::Duration waited);
  // An established connection has ended.
  void NoteGone();
  // Returns false for a refusal that the previous connection did not get.
  // Without TLS, a byte damaged in the headers of the call can cause a refusal
  // of any kind, also for other calls on that connection. So a refusal counts
  // only once a new connection gets the same.
  bool NoteEnd(const grpc::Status& status, bool welcomed);
  void NoteError(const absl::Status& status);
  // How payloads are sent: OK for shared memory, otherwise why not.
  void NoteLane(const absl::Status& status);
  void NoteSpooled(uint64_t bytes);
  // The spool could not be opened.
  void NoteNoSpool() { no_spool_ = true; }

  // Reports after a while that there is no connection.
  void TellIfSilent();
  // See Session::TellStuck.
  void TellStuck(absl::Duration waited) const;
  // Describes to a person why data is not delivered at the end.
  std::string WhyLost() const;
  void TellUndelivered(const v1::Undelivered& left) const;
  // [worker] Reports, once, that another process records under this name of the
  // run. A process without a rank waits for its first step, with which a
  // framework may set the rank, or for its end.
  void NoteOther(const v1::OtherProcess& other);
  void TellOther(bool stepped_or_ends);

 private:
  // The rank, for a line of text; empty if it is not known.
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
  // The last connection was given up because nothing was received on it.
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
  // Code of the last answer to a hello; OK if that was not a refusal.
  absl::StatusCode refused_with_ ABSL_GUARDED_BY(mutex_) =
      absl::StatusCode::kOk;
  uint64_t reconnects_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  v1::Identity identity_ ABSL_GUARDED_BY(mutex_);
  uint64_t spooled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> no_spool_{false};
  std::string lane_ ABSL_GUARDED_BY(mutex_);
  // The process that TellOther still has to report. Only the worker uses it.
  std::optional<v1::OtherProcess> other_;
  // Whether it was reported: a root sends it again after a restart.
  bool told_other_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_LINK_STATUS_H_
