// SPDX-License-Identifier: Apache-2.0
// Export of a run from the store in the msprobe dump layout:
//   step{N}/rank{R}/{dump,stack,construct}.json, dump_tensor_data/*.pt,
//   debug.json (level debug), dump_error_info.log, and manifest.json at the
//   root with files, sizes, checksums and gaps.
//
// Threads: ExportRun may run in several threads at once over one archive.
// Failure: the sink's or store's first error ends the export; a directory sink
// leaves nothing under the final name.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/archive_reader.h"
#include "common/config/plan.h"
#include "common/io/file_system.h"

namespace rankprobe {

// Receives the exported files. One file is open at a time.
class ExportSink {
 public:
  virtual ~ExportSink() = default;
  // `path` is relative, '/'-separated and safe. `length_bytes` is exact.
  virtual absl::Status BeginFile(const std::string& path,
                                 uint64_t length_bytes) = 0;
  virtual absl::Status Write(absl::string_view data) = 0;
  virtual absl::Status EndFile() = 0;
  // Discards the open file, whose data turned out to be unreadable.
  virtual absl::Status AbortFile() = 0;
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  // Makes `path` another name of the finished file `existing`.
  virtual absl::Status LinkFile(const std::string& path,
                                const std::string& existing) = 0;
  // Returns the XXH3 of a file of this length from an earlier attempt, if any.
  virtual std::optional<uint64_t> FindKept(const std::string& path,
                                           uint64_t length_bytes) = 0;
  // Uses the file that FindKept found; it is not written again.
  virtual absl::Status UseKept(const std::string& path) = 0;
};

struct ExportOptions {
  std::string run;
  IntSet steps;
  IntSet ranks;
  // If set, exports only steps with this request of a server, and its rows.
  std::string request;
  // Number of ranks and steps that are written to a directory in parallel.
  int threads = 1;
  // Options of ExportRequest.
  bool without_payloads = false;
  bool unchecked = false;
  // Makes payloads of equal bytes, dtype and shape names of one file.
  bool link = false;
  // ExportRunToDirectory: continues an interrupted export in that directory.
  bool resume = false;
  // Returns manifest.json in the ExportDone instead of as a file.
  bool manifest_in_reply = false;
  // See StagedTree::Open.
  std::string staging_directory;
  // Called from time to time, from one thread at a time; may be empty. A non-OK
  // status cancels the export.
  std::function<absl::Status(const v1::ExportProgress&)> progress;
};

// INVALID_ARGUMENT (several requests match), NOT_FOUND (unknown run, or nothing
// selected).
absl::StatusOr<v1::ExportDone> ExportRun(ArchiveReader* store,
                                         const ExportOptions& options,
                                         ExportSink* sink);

// Exports into `directory` through a StagedTree. FAILED_PRECONDITION while
// another export writes there. Existing step directories of the same run are
// replaced one by one; other content is not changed. Directories 0750, files
// 0640.
absl::StatusOr<v1::ExportDone> ExportRunToDirectory(
    ArchiveReader* store, const ExportOptions& options, FileSystem* file_system,
    const std::string& directory);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_H_
