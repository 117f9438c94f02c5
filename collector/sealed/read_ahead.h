// SPDX-License-Identifier: Apache-2.0
// Parts of objects that are read in order, in few requests: a small part close
// after the last one is taken from a range that reaches further, twice as far
// each time, up to 8 MiB. A part anywhere else is requested alone. Several
// sequences of parts may be read at once, even of one object.
// Memory: at most 32 MiB, and the answers to pending requests.
// Ownership: the store outlives it. Thread-safe; requests are sent without a
// lock held. Failure: the store's.
#ifndef RANKPROBE_COLLECTOR_SEALED_READ_AHEAD_H_
#define RANKPROBE_COLLECTOR_SEALED_READ_AHEAD_H_

#include <cstdint>
#include <list>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/object_store/object_store.h"

namespace rankprobe {

class ReadAhead {
 public:
  explicit ReadAhead(ObjectStore* store) : store_(store) {}

  // Returns these bytes of an object that is `object_bytes` long.
  absl::StatusOr<std::string> Get(const std::string& key, uint64_t object_bytes,
                                  uint64_t offset, uint64_t bytes);
  // Drops what was read of the object.
  void Forget(const std::string& key);
  uint64_t kept_bytes() const;

 private:
  struct Span {
    std::string key;
    uint64_t offset = 0;
    std::string bytes;
    // Length of the next range.
    uint64_t next = 0;
  };

  void Keep(Span span) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ObjectStore* const store_;
  mutable absl::Mutex mutex_;
  // The most recently used span first.
  std::list<Span> spans_ ABSL_GUARDED_BY(mutex_);
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_READ_AHEAD_H_
