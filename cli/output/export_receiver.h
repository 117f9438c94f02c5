// SPDX-License-Identifier: Apache-2.0
// Files of a streamed export, written into a StagedTree. Paths come from the
// collector and are not trusted. Not thread-safe.
#ifndef RANKPROBE_CLI_OUTPUT_EXPORT_RECEIVER_H_
#define RANKPROBE_CLI_OUTPUT_EXPORT_RECEIVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "common/io/file_system.h"
#include "common/io/staged_tree.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// A run may be large, so --timeout does not limit an export: only a silent
// stream ends it, and gRPC detects a collector that has ended.
inline constexpr double kLongestExportSeconds = 24 * 3600;

// Whether the path is relative, '/'-separated, and without empty, "." or ".."
// components or control bytes.
bool IsSafeRelativePath(absl::string_view path);

// Result of a streamed export: the status of `take`, then that of the call.
struct ReceivedExport {
  absl::Status written, called;
  bool was_damaged = false;
  std::optional<v1::ExportDone> done;

  // Whether the received data is good because only the connection failed or the
  // disk is full.
  bool IsWorthKeeping() const;
  // Also DATA_LOSS if the call ended with OK before its ExportDone: a proxy or
  // a disconnected collector ends a stream as if it were complete.
  absl::Status status() const;
};

// Calls `take(event)` for each event until it returns an error.
ReceivedExport ReceiveExport(
    const Client& client, const v1::ExportRequest& request,
    absl::FunctionRef<absl::Status(const v1::ExportEvent&)> take);

class ExportFiles {
 public:
  // Returns FAILED_PRECONDITION while another export writes to the directory.
  static absl::StatusOr<std::unique_ptr<ExportFiles>> Open(
      FileSystem* file_system, const std::string& directory,
      StagedTree::Leftovers leftovers);

  // Requests the export, writes its files and passes each event to `watch`. If
  // something was damaged in transit, requests what is missing again, at most
  // kMostCalls times in total.
  static constexpr int kMostCalls = 4;
  ReceivedExport Receive(
      const Client& client, v1::ExportRequest request,
      absl::FunctionRef<absl::Status(const v1::ExportEvent&)> watch);
  // Keeps the finished files for a later attempt with Leftovers::kReuse.
  void Keep() { tree_->Keep(); }
  // Moves all files to their final places; they all belong to `run`.
  absl::Status Finish(absl::string_view run);
  // See StagedTree.
  const std::set<std::string>& moved_to() const { return tree_->moved_to(); }

  absl::Status OnEvent(const v1::ExportEvent& untrusted);

 private:
  ExportFiles(FileSystem* file_system, std::string directory,
              std::unique_ptr<StagedTree> tree, bool continues)
      : file_system_(file_system),
        directory_(std::move(directory)),
        tree_(std::move(tree)),
        continues_(continues) {}
  // Adds the files that an earlier attempt left to the request, as many as fit
  // into one message.
  absl::Status Offer(v1::ExportRequest* request);
  // Starts again with the files received so far.
  absl::Status BeginAgain();
  absl::Status CloseFile();
  // Returns PERMISSION_DENIED if DIR/step{N} of `path` is a link: its target is
  // another tree, whose rank directories must not be replaced.
  absl::Status CheckStep(absl::string_view path);

  FileSystem* const file_system_;
  const std::string directory_;
  std::set<std::string, std::less<>> steps_;
  std::unique_ptr<StagedTree> tree_;
  // There may be files of an earlier attempt.
  bool continues_;
  std::string path_;
  uint64_t missing_bytes_ = 0;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_EXPORT_RECEIVER_H_
