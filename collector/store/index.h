// SPDX-License-Identifier: Apache-2.0
// The index: an ordered map of small values with atomic batches, on LevelDB.
// Another index can be substituted here. Thread-safe. Errors: DATA_LOSS
// (corrupt), RESOURCE_EXHAUSTED (no space), UNAVAILABLE (other I/O).
#ifndef RANKPROBE_COLLECTOR_STORE_INDEX_H_
#define RANKPROBE_COLLECTOR_STORE_INDEX_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

namespace rankprobe {

// Called for each row; an error ends the scan.
using ScanFn =
    std::function<absl::Status(absl::string_view key, absl::string_view value)>;

class IndexBatch {
 public:
  virtual ~IndexBatch() = default;
  virtual void Put(absl::string_view key, absl::string_view value) = 0;
  virtual void Delete(absl::string_view key) = 0;
};

// Content of the index at one moment. The index outlives it.
class IndexSnapshot {
 public:
  virtual ~IndexSnapshot() = default;
  // Like Index::ScanRange, over the snapshot.
  virtual absl::Status ScanRange(absl::string_view first,
                                 absl::string_view last,
                                 const ScanFn& callback) = 0;
};

class Index {
 public:
  virtual ~Index() = default;
  virtual std::unique_ptr<IndexBatch> NewBatch() = 0;
  // Writes the batch atomically. With `sync`, this and all earlier writes
  // survive a machine crash.
  virtual absl::Status Write(std::unique_ptr<IndexBatch> batch, bool sync) = 0;
  // Makes all writes before the call survive a machine crash. Writes continue
  // meanwhile.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<std::optional<std::string>> Get(
      absl::string_view key) = 0;
  // Scans the entries whose key starts with `prefix`, in key order, from one
  // snapshot.
  virtual absl::Status Scan(absl::string_view prefix,
                            const ScanFn& callback) = 0;
  // The same for keys from `first` to `last`, both included.
  virtual absl::Status ScanRange(absl::string_view first,
                                 absl::string_view last,
                                 const ScanFn& callback) = 0;
  // The same for several such ranges, in ascending order; `range` is the
  // position of the range that the row belongs to.
  virtual absl::Status ScanRanges(
      absl::Span<const std::pair<std::string, std::string>> ranges,
      const std::function<absl::Status(size_t range, absl::string_view key,
                                       absl::string_view value)>& callback) = 0;
  // Returns a snapshot for consistent reads of several tables. It is used by
  // one thread at a time.
  virtual absl::StatusOr<std::unique_ptr<IndexSnapshot>> Snapshot() = 0;
  // Returns the approximate size of the files; recent writes are not counted.
  virtual uint64_t ApproximateBytes(absl::string_view prefix) = 0;
  // Reclaims the space of rows that were deleted under `prefix`.
  virtual void Compact(absl::string_view prefix) = 0;
};

struct IndexOptions {
  std::string directory;
  uint64_t write_buffer_bytes = 0;
  uint64_t cache_bytes = 0;
  // All files of the index are accessed through it.
  FileSystem* file_system = nullptr;
  // If false, a missing index is DATA_LOSS.
  bool create_if_missing = true;
};

absl::StatusOr<std::unique_ptr<Index>> OpenLevelDbIndex(
    const IndexOptions& options);

// Repairs a damaged index so that it opens: unreadable parts are left out (and
// kept in `directory`/lost), the rest is kept.
absl::Status RepairLevelDbIndex(const IndexOptions& options);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_INDEX_H_
