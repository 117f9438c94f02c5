// SPDX-License-Identifier: Apache-2.0
// Immutable objects by key: the interface to an S3 bucket or to a directory
// that several machines share (docs/scale.md).
//
// An object is visible completely or not at all, and is durable once the call
// that put it has returned. A store needs no guarantees beyond this interface:
// start-up tests create-if-absent (store_probe.h), the rest is basic.
// Ownership: clock, files and transport that a store is created with outlive
// it. Threads: all methods are thread-safe. Deadlines: an S3 call ends within
// the store's call_timeout; a directory's as soon as the file system answers.
// Failure: NOT_FOUND; ALREADY_EXISTS; INVALID_ARGUMENT (a key that no store
// would accept); PERMISSION_DENIED; OUT_OF_RANGE; RESOURCE_EXHAUSTED (no
// space); FAILED_PRECONDITION (no such bucket, another region); UNAVAILABLE and
// DEADLINE_EXCEEDED (it may or may not have been done).
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_OBJECT_STORE_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_OBJECT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct ObjectInfo {
  std::string key;
  uint64_t bytes = 0;
};

// In byte order of their keys.
struct ObjectList {
  std::vector<ObjectInfo> objects;
  // More objects follow these.
  bool more = false;
};

// The end of an object.
struct ObjectTail {
  std::string bytes;
  uint64_t object_bytes = 0;
};

class ObjectStore {
 public:
  enum class PutMode {
    // Replaces an existing object.
    kReplace,
    // Of several concurrent puts of one key one succeeds; the others get
    // ALREADY_EXISTS. So does a retry of an attempt that succeeded and whose
    // answer was lost: after this error a caller reads the object.
    kIfAbsent,
  };

  virtual ~ObjectStore() = default;

  // Returns a name for display: "s3://bucket/prefix", "directory /d".
  virtual std::string name() const = 0;

  virtual absl::Status Put(const std::string& key, absl::string_view bytes,
                           PutMode mode) = 0;
  // The same for a file that does not change meanwhile, of any size. Replaces
  // an existing object: unconditional, because no store supports a condition on
  // a multipart upload.
  virtual absl::Status PutFile(const std::string& key, FileSystem* file_system,
                               const std::string& path) = 0;

  // Returns exactly these bytes; OUT_OF_RANGE if the object ends before.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          uint64_t offset, uint64_t bytes) = 0;
  // Returns the last `bytes`, or the complete object if it is smaller.
  virtual absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                             uint64_t bytes) = 0;

  // Returns at most `most` (1 to 1,000) objects whose keys begin with `prefix`
  // and follow `start_after`. Objects that were put before the call are listed.
  virtual absl::StatusOr<ObjectList> List(const std::string& prefix,
                                          const std::string& start_after,
                                          size_t most) = 0;

  // OK also if the object does not exist.
  virtual absl::Status Delete(const std::string& key) = 0;
};

// Checks that a key consists of parts of letters, digits, '.', '_' and '-' that
// begin with a letter or digit, with '/' between them, which makes it a key for
// every store and a path for every file system. INVALID_ARGUMENT.
absl::Status CheckObjectKey(absl::string_view key);
// Checks a prefix of such a key; it may be empty.
absl::Status CheckObjectPrefix(absl::string_view prefix);

// Returns the complete object. DATA_LOSS if it is larger than `most_bytes`.
absl::StatusOr<std::string> GetObject(ObjectStore* store,
                                      const std::string& key,
                                      uint64_t most_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_OBJECT_STORE_H_
