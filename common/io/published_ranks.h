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
  // `directory` is the tree's, `list` the file of the list.
  PublishedRanks(FileSystem* file_system, std::string directory,
                 std::string list);

  // ALREADY_EXISTS if `rank` ("step0/rank1") exists and was not made by an
  // export.
  absl::Status CheckReplaceable(const std::string& rank);
  // The same of DIR/manifest.json.
  absl::Status CheckManifestReplaceable();

  // The run that DIR/manifest.json names `rank` of, "" for one without a name.
  std::optional<std::string> RunOf(const std::string& rank);
  // Whether the list names it.
  bool IsListed(const std::string& rank);
  // Moves DIR/`rank`, which an export of `run` made, to where no export
  // replaces it: DIR/earlier/RUN, or RUN.2 and so on where that has one. That
  // directory, relative.
  absl::StatusOr<std::string> MoveAside(const std::string& rank,
                                        const std::string& run);

  // Appends to the list: for an export that leaves the manifest to its caller.
  absl::Status Append(const std::set<std::string>& ranks);
  // The list names all there were and `ranks`.
  absl::Status WriteAll(const std::set<std::string>& ranks);
  // DIR/manifest.json names `ranks` now: the list is for the others.
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
  // Both those of the list and of the manifest.
  std::set<std::string> ranks_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> listed_ ABSL_GUARDED_BY(mutex_);
  // To their runs.
  std::map<std::string, std::string> in_manifest_ ABSL_GUARDED_BY(mutex_);
};

// Makes `directory`, or makes sure that it is empty or made by this function:
// its content may then be deleted. FAILED_PRECONDITION for any other. `purpose`
// is for a person who finds it.
absl::Status ClaimDirectory(FileSystem* file_system,
                            const std::string& directory,
                            absl::string_view purpose);

// Deletes it again, the claim last: of what a killed process leaves it is still
// known whose it is.
absl::Status DeleteClaimedDirectory(FileSystem* file_system,
                                    const std::string& directory);

// The file that ClaimDirectory leaves.
extern const char kClaimFile[];

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_PUBLISHED_RANKS_H_
