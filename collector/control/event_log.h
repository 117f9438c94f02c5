// SPDX-License-Identifier: Apache-2.0
// Log of events of runs: the newest events in memory, all in a file that is
// turned over once. Each line of the file is one framed Event: length, CRC32C,
// bytes (docs/storage.md, "Events and audit").
//
// Whoever tells much loses its own: each run has a ring for each kind of event,
// the largest ring gives way when there are too many, and a ring that is told
// more than its rate leaves events out and says how many. A file that begins
// anew begins with what is in memory, so that this holds over restarts too.
//
// Ownership: one per collector; FileSystem and Clock outlive it. Thread-safe:
// Append and List wait for no disk, the file is written behind them.
// Failure: an event that cannot be written is kept in memory and the fault is
// remembered; nothing is written then until the next start. Events that come
// faster than the disk takes them are left out of the file, which an event says.
// A torn end is dropped at Open, and after an end that was not clean ids go on
// far above those that may have been handed out.
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
    // Empty: memory only.
    std::string path;
    size_t max_in_memory = 10000;
    // The file is moved to `path`.1 beyond this. Half of it is the most that
    // is in memory.
    uint64_t max_file_bytes = 64 << 20;
    // Of one kind in one run: so many at once, and so many a second.
    double burst = 1000;
    double events_per_second = 20;
    // The file is written by a thread of its own; else in Append.
    bool own_thread = false;
    // Events that wait for the disk. More are in memory only.
    size_t max_unwritten = 20000;
  };

  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const Options& options,
                                                        FileSystem* file_system,
                                                        const Clock* clock);

  // Writes what waits, and that all is written.
  ~EventLog();

  // Gives the event its id and time; returns the id; 0 when it is left out.
  uint64_t Append(v1::Event event);

  // Newest `limit` events after `after_id`, oldest first; `run` empty: all.
  std::vector<v1::Event> List(const std::string& run, uint64_t after_id,
                              size_t limit) const;

  // Returns when what was appended before is written.
  void WaitForWrites() { writes_.Wait(); }

  // The last fault of writing; OK when there was none.
  absl::Status status() const;

 private:
  EventLog(const Options& options, FileSystem* file_system, const Clock* clock)
      : options_(options),
        file_system_(file_system),
        clock_(clock),
        writes_(options.own_thread) {}

  using RingKey = std::pair<std::string, int>;
  struct Ring {
    // By id.
    std::deque<v1::Event> events;
    uint64_t bytes = 0;
    // What may still be told at `counted_ns`.
    double allowed = 0;
    int64_t counted_ns = 0;
    uint64_t left_out = 0;
  };

  static RingKey KeyOf(const v1::Event& event) {
    return {event.run(), static_cast<int>(event.kind())};
  }
  Ring* RingOf(const v1::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the ring may be told one more event now.
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
  // An event that says how many are not in the file, when there is room again.
  void NoteDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what waits; called by `writes_` alone.
  void WriteWaiting();
  // Begins the file anew with what was in memory before `first_id`.
  absl::Status TurnOver(uint64_t first_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  // `clean_end`: everything that was told was written.
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
  // Held while the file is written; never waited for with mutex_ held.
  absl::Mutex file_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<RingKey, Ring> rings_ ABSL_GUARDED_BY(mutex_);
  // Rings by their bytes.
  std::set<std::pair<uint64_t, RingKey>> by_size_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::Event> unwritten_ ABSL_GUARDED_BY(mutex_);
  // Since the last note of it.
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(file_mutex_);
  uint64_t file_bytes_ ABSL_GUARDED_BY(file_mutex_) = 0;
  absl::Status written_ ABSL_GUARDED_BY(file_mutex_);
  // The last member: what it still has to do needs the others.
  DiskQueue writes_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_
