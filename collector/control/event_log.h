// What happened to runs: the newest events in memory, all in a file that is
// turned over once. Each line of the file is one framed Event: length, CRC32C,
// bytes (docs/formats.md, "Events").
//
// Ownership: one per collector; FileSystem and Clock outlive it. Thread-safe.
// Failure: an event that cannot be written is kept in memory and the fault is
// remembered; a torn end is dropped at Open.
#ifndef RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_
#define RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "rankprobe/v1/watch.pb.h"

namespace rankprobe {

class EventLog {
 public:
  struct Options {
    // Empty: memory only.
    std::string path;
    size_t max_in_memory = 10000;
    // The file is moved to `path`.1 beyond this.
    uint64_t max_file_bytes = 64 << 20;
  };

  static absl::StatusOr<std::unique_ptr<EventLog>> Open(const Options& options,
                                                        FileSystem* file_system,
                                                        const Clock* clock);

  // Gives the event its id and time; returns the id.
  uint64_t Append(v1::Event event);

  // Newest `limit` events after `after_id`, oldest first; `run` empty: all.
  std::vector<v1::Event> List(const std::string& run, uint64_t after_id,
                              size_t limit) const;

  // The last fault of writing; OK when there was none.
  absl::Status status() const;

 private:
  EventLog(const Options& options, FileSystem* file_system, const Clock* clock)
      : options_(options), file_system_(file_system), clock_(clock) {}

  absl::Status Load(const std::string& path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const v1::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<v1::Event> events_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);
  uint64_t file_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_EVENT_LOG_H_
