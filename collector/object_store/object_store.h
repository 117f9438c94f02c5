// SPDX-License-Identifier: Apache-2.0
// Immutable objects by key: the seam to an S3 bucket or to a directory that
// several machines share (docs/scale.md).
//
// An object is visible whole or not at all, and stays when a call that put it
// has returned. Nothing is asked of a store beyond what this interface says:
// Start-up proves create-if-absent (store_probe.h), the rest is plain.
// Ownership: what makes a store is given clock, files and transport that outlive
// it. Threads: all methods are thread-safe. Deadlines: an S3 call ends within the
// store's call_timeout; a directory's as soon as the file system answers.
// Failure: NOT_FOUND; ALREADY_EXISTS; INVALID_ARGUMENT (a key that no store
// would take); PERMISSION_DENIED; OUT_OF_RANGE; RESOURCE_EXHAUSTED (no space);
// FAILED_PRECONDITION (no such bucket, another region); UNAVAILABLE and
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
  // There are others behind these.
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
    // Whatever is there.
    kReplace,
    // Of several that put one key at once, one succeeds; the others are told
    // ALREADY_EXISTS. So is one whose earlier attempt was done and whose answer
    // was lost: who is told so reads what is there.
    kIfAbsent,
  };

  virtual ~ObjectStore() = default;

  // What it is, for people: "s3://bucket/prefix", "directory /d".
  virtual std::string name() const = 0;

  virtual absl::Status Put(const std::string& key, absl::string_view bytes,
                           PutMode mode) = 0;
  // The same of a file that does not change meanwhile, of any size, whatever is
  // there: unconditional, because no store keeps a condition on an upload in
  // parts.
  virtual absl::Status PutFile(const std::string& key, FileSystem* file_system,
                               const std::string& path) = 0;

  // Exactly these bytes; OUT_OF_RANGE where the object ends before.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          uint64_t offset, uint64_t bytes) = 0;
  // The last `bytes`, or the whole object if it is smaller.
  virtual absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                             uint64_t bytes) = 0;

  // At most `most` (1 to 1,000) whose keys begin with `prefix` and are behind
  // `start_after`. What was put before the call is listed.
  virtual absl::StatusOr<ObjectList> List(const std::string& prefix,
                                          const std::string& start_after,
                                          size_t most) = 0;

  // OK, too, where there is none.
  virtual absl::Status Delete(const std::string& key) = 0;
};

// Parts of letters, digits, '.', '_' and '-' that begin with a letter or digit,
// with '/' between them: what is a key for every store and a path for every
// file system. INVALID_ARGUMENT.
absl::Status CheckObjectKey(absl::string_view key);
// What such a key may begin with; may be empty.
absl::Status CheckObjectPrefix(absl::string_view prefix);

// The whole object. DATA_LOSS if it is larger than `most_bytes`.
absl::StatusOr<std::string> GetObject(ObjectStore* store,
                                      const std::string& key,
                                      uint64_t most_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_OBJECT_STORE_H_
