// SPDX-License-Identifier: Apache-2.0
// The index: an ordered map of small values with atomic batches, on LevelDB.
// The seam to another index. Thread-safe. Errors: DATA_LOSS (corrupt),
// RESOURCE_EXHAUSTED (no space), UNAVAILABLE (other I/O).
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

// Takes a row; its error ends the scan.
using ScanFn =
    std::function<absl::Status(absl::string_view key, absl::string_view value)>;

class IndexBatch {
 public:
  virtual ~IndexBatch() = default;
  virtual void Put(absl::string_view key, absl::string_view value) = 0;
  virtual void Delete(absl::string_view key) = 0;
};

// What one moment's index has. The index outlives it.
class IndexSnapshot {
 public:
  virtual ~IndexSnapshot() = default;
  // As Index::ScanRange.
  virtual absl::Status ScanRange(absl::string_view first,
                                 absl::string_view last,
                                 const ScanFn& callback) = 0;
};

class Index {
 public:
  virtual ~Index() = default;
  virtual std::unique_ptr<IndexBatch> NewBatch() = 0;
  // Atomic. With `sync`, this and all earlier writes survive a machine crash.
  virtual absl::Status Write(std::unique_ptr<IndexBatch> batch, bool sync) = 0;
  // All writes before the call survive a machine crash. Writes go on meanwhile.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<std::optional<std::string>> Get(
      absl::string_view key) = 0;
  // Entries whose key starts with `prefix`, in key order, from one snapshot.
  virtual absl::Status Scan(absl::string_view prefix,
                            const ScanFn& callback) = 0;
  // The same of keys from `first` to `last`, both included.
  virtual absl::Status ScanRange(absl::string_view first,
                                 absl::string_view last,
                                 const ScanFn& callback) = 0;
  // The same of several such ranges, in ascending order; `range`: which.
  virtual absl::Status ScanRanges(
      absl::Span<const std::pair<std::string, std::string>> ranges,
      const std::function<absl::Status(size_t range, absl::string_view key,
                                       absl::string_view value)>& callback) = 0;
  // For ranges of several tables that belong together. One thread at a time.
  virtual absl::StatusOr<std::unique_ptr<IndexSnapshot>> Snapshot() = 0;
  // Of the files; what was written a short while ago is not counted.
  virtual uint64_t ApproximateBytes(absl::string_view prefix) = 0;
  // Gives back the space of what was deleted under `prefix`.
  virtual void Compact(absl::string_view prefix) = 0;
};

struct IndexOptions {
  std::string directory;
  uint64_t write_buffer_bytes = 0;
  uint64_t cache_bytes = 0;
  // All files of the index go through it.
  FileSystem* file_system = nullptr;
  // False: DATA_LOSS where there is none.
  bool create_if_missing = true;
};

absl::StatusOr<std::unique_ptr<Index>> OpenLevelDbIndex(
    const IndexOptions& options);

// Makes a damaged index one that opens: what cannot be read is left out (and
// kept in `directory`/lost), the rest stays.
absl::Status RepairLevelDbIndex(const IndexOptions& options);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_INDEX_H_
