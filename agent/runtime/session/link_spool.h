// SPDX-License-Identifier: Apache-2.0
// The spool of a session while it runs: frames are copied from the queue to
// disk until a collector has committed them.
//
// Ownership: the CollectorLink's; options, queue and status outlive it.
// Threads: all methods are thread-safe. Its lock is taken before those of the
// queue and the status.
// Failure: a spool that refuses frames is reported once; the collector still
// receives them.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_LINK_SPOOL_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_LINK_SPOOL_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/session/link_status.h"
#include "agent/runtime/session/session.h"
#include "agent/runtime/session/spool.h"
#include "common/io/file_system.h"

namespace rankprobe {

class LinkSpool {
 public:
  LinkSpool(const SessionOptions& options, FrameQueue* queue,
            LinkStatus* status);

  // Whether a recorded step is safe once its frames are in the spool.
  bool keeps() const { return options_.stop_barrier == StopBarrier::kKept; }
  FileSystem* file_system() const { return file_system_; }
  // Opens the spool; waits for the disk.
  void Open();
  // Writes new frames to disk.
  void Update();
  // See Session::Keep.
  bool Keep();
  // Reports to the user that the next process with this spool will send the
  // frames in `left`.
  void TellLeft(const v1::Undelivered& left) const;

 private:
  void Append() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports, once, that the spool accepts no (more) frames.
  void NoteFault(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionOptions& options_;
  FrameQueue* const queue_;
  LinkStatus* const status_;
  const std::unique_ptr<FileSystem> posix_;
  FileSystem* const file_system_;
  // Serializes the writers, from taking a frame's number to its place in the
  // file.
  absl::Mutex mutex_;
  std::unique_ptr<Spool> spool_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_LINK_SPOOL_H_
