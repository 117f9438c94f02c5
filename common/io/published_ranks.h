// SPDX-License-Identifier: Apache-2.0
// Rank directories of an exported tree that exports made, and that an export
// may therefore replace: those that DIR/manifest.json names, and those that a
// list names, if the manifest of a later export does not mention them.
//
// Thread-safe. A list or manifest that cannot be read names nothing.
#ifndef RANKPROBE_COMMON_IO_PUBLISHED_RANKS_H_
#define RANKPROBE_COMMON_IO_PUBLISHED_RANKS_H_

#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/io/file_system.h"

namespace rankprobe {

class PublishedRanks {
 public:
  // `directory` is the tree's, `list` the path of the list.
  PublishedRanks(FileSystem* file_system, std::string directory,
                 std::string list);

  // ALREADY_EXISTS if `rank` ("step0/rank1") exists and was not made by an
  // export.
  absl::Status CheckReplaceable(const std::string& rank);
  // The same for DIR/manifest.json.
  absl::Status CheckManifestReplaceable();

  // The run to which DIR/manifest.json assigns `rank`; "" for a run without a
  // name.
  std::optional<std::string> RunOf(const std::string& rank);
  // Whether the list names the rank.
  bool IsListed(const std::string& rank);
  // Moves DIR/`rank`, which an export of `run` made, to a place that exports do
  // not replace: DIR/earlier/RUN, or RUN.2 and so on if that exists. Returns
  // that directory, relative to DIR.
  absl::StatusOr<std::string> MoveAside(const std::string& rank,
                                        const std::string& run);

  // Appends to the list. For an export that leaves the manifest to its caller.
  absl::Status Append(const std::set<std::string>& ranks);
  // Writes all known ranks and `ranks` to the list.
  absl::Status WriteAll(const std::set<std::string>& ranks);
  // DIR/manifest.json names `ranks` now: writes the other ranks to the list.
  absl::Status WriteRest(const std::set<std::string>& ranks);

 private:
  void Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const std::set<std::string>& ranks);

  FileSystem* const file_system_;
  const std::string directory_;
  const std::string list_;
  absl::Mutex mutex_;
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool manifest_is_ours_ ABSL_GUARDED_BY(mutex_) = false;
  // Ranks of the list and of the manifest.
  std::set<std::string> ranks_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> listed_ ABSL_GUARDED_BY(mutex_);
  // Maps ranks to their runs.
  std::map<std::string, std::string> in_manifest_ ABSL_GUARDED_BY(mutex_);
};

// Creates `directory`, or checks that it is empty or was created by this
// function, so that its contents may be deleted. FAILED_PRECONDITION for any
// other directory. `purpose` is written into it for a person who finds it.
absl::Status ClaimDirectory(FileSystem* file_system,
                            const std::string& directory,
                            absl::string_view purpose);

// Deletes the directory, the claim file last: if the process is killed in
// between, the claim still identifies what is left.
absl::Status DeleteClaimedDirectory(FileSystem* file_system,
                                    const std::string& directory);

// Name of the file that ClaimDirectory writes.
extern const char kClaimFile[];

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_PUBLISHED_RANKS_H_
