// SPDX-License-Identifier: Apache-2.0
// Log of events of runs: the newest events in memory, all in a file that is
// rotated once. Each line of the file is one framed Event: length, CRC32C,
// bytes (docs/storage.md, "Events and audit").
//
// A source of many events only displaces its own: each run has a ring for each
// kind of event, the largest ring loses its oldest event when there are too
// many, and a ring that exceeds its rate leaves events out and reports how
// many. A new file begins with the events in memory, so that this holds over
// restarts too.
//
// Ownership: one per collector; FileSystem and Clock outlive it. Thread-safe:
// Append and List do not wait for a disk, the file is written later.
// Failure: an event that cannot be written is kept in memory and the error is
// remembered; nothing more is written until the next start. Events that arrive
// faster than the disk writes are left out of the file, which an event reports.
// A torn end is dropped at Open, and after an unclean end ids continue far
// above those that may have been returned.
#ifndef RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_
#define RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/control/disk_queue.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/triggers.pb.h"

namespace rankprobe {

class EventLog {
 public:
  struct Options {
    // Empty: the log is kept in memory only.
    std::string path;
    size_t max_in_memory = 10000;
    // Beyond this size the file is moved to `path`.1. At most half of this is
    // kept in memory.
    uint64_t max_file_bytes = 64 << 20;
    // Limits for one kind of event in one run: a burst, and events per second
    // after it.
    double burst = 1000;
    double events_per_second = 20;
    // If true, a separate thread writes the file; otherwise Append does.
    bool own_thread = false;
    // Limit for events that wait for the disk; further ones are kept in memory
    // only.
    size_t max_unwritten = 20000;
  };

  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const Options& options,
                                                        FileSystem* file_system,
                                                        const Clock* clock);

  // Writes the waiting events, and a mark that all events are written.
  ~EventLog();

  // Gives the event its id and time. Returns the id, or 0 if the event is left
  // out.
  uint64_t Append(v1::Event event);

  // Returns the newest `limit` events after `after_id`, oldest first; all runs
  // if `run` is empty.
  std::vector<v1::Event> List(const std::string& run, uint64_t after_id,
                              size_t limit) const;

  // Returns when all events appended before are written.
  void WaitForWrites() { writes_.Wait(); }

  // Returns the last error of writing, or OK.
  absl::Status status() const;

 private:
  EventLog(const Options& options, FileSystem* file_system, const Clock* clock)
      : options_(options),
        file_system_(file_system),
        clock_(clock),
        writes_(options.own_thread) {}

  using RingKey = std::pair<std::string, int>;
  struct Ring {
    // In the order of ids.
    std::deque<v1::Event> events;
    uint64_t bytes = 0;
    // Number of events that were still allowed at `counted_ns`.
    double allowed = 0;
    int64_t counted_ns = 0;
    uint64_t left_out = 0;
  };

  static RingKey KeyOf(const v1::Event& event) {
    return {event.run(), static_cast<int>(event.kind())};
  }
  Ring* RingOf(const v1::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the rate of the ring allows one more event now.
  bool Allow(Ring* ring) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(v1::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldestOfLargest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Resize(const RingKey& key, Ring* ring, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<const v1::Event*> InOrder(const std::string& run,
                                        uint64_t after_id) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Queues the event for the file.
  void WriteLater(const v1::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Number(v1::Event* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once there is room again, adds an event that says how many are not in the
  // file.
  void NoteDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the waiting events; only called by `writes_`.
  void WriteWaiting();
  // Begins a new file with the events in memory before `first_id`.
  absl::Status TurnOver(uint64_t first_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  // Sets `clean_end` if all events were written.
  absl::Status Load(const std::string& path, bool* clean_end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  absl::Status Write(const v1::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  absl::Status WriteFramed(absl::string_view bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);

  const Options options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  // Held while the file is written; never acquired while mutex_ is held.
  absl::Mutex file_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<RingKey, Ring> rings_ ABSL_GUARDED_BY(mutex_);
  // Rings ordered by size.
  std::set<std::pair<uint64_t, RingKey>> by_size_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::Event> unwritten_ ABSL_GUARDED_BY(mutex_);
  // Events left out of the file since the last event that reported it.
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(file_mutex_);
  uint64_t file_bytes_ ABSL_GUARDED_BY(file_mutex_) = 0;
  absl::Status written_ ABSL_GUARDED_BY(file_mutex_);
  // The last member, because its remaining tasks use the others.
  DiskQueue writes_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_
