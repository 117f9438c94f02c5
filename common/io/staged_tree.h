// SPDX-License-Identifier: Apache-2.0
// An exported tree while it is written: all files are in
// DIR/.rankprobe-export/new (or elsewhere) until Publish moves complete rank
// directories to their place, so that DIR never shows an incomplete export.
//
// Existing files are deleted or replaced only if an export made them: a staging
// directory that is new, empty or claimed (published_ranks.h), and rank
// directories of an earlier export. Those that one of another run made, or one
// for another job, move to DIR/earlier (PublishedRanks::MoveAside).
//
// Owned by one export. Threads: PathOf, Reuse and MakeDirectory from any, the
// rest from one.
// Failure: the destructor deletes files that are not published, unless Keep was
// called; a killed process leaves them too. A later Open with kReuse uses the
// files of such an attempt again. A later Open also restores what a killed
// process had moved and not replaced.
#ifndef RANKPROBE_COMMON_IO_STAGED_TREE_H_
#define RANKPROBE_COMMON_IO_STAGED_TREE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "common/io/published_ranks.h"

namespace rankprobe {

class StagedTree {
 public:
  enum class Leftovers { kDelete, kReuse };
  struct File {
    std::string path;  // relative
    uint64_t length_bytes = 0;
    uint64_t xxh3 = 0;
  };

  // FAILED_PRECONDITION if another export writes to the directory, or if the
  // staging directory holds other files. `staging`, if given, is used instead
  // of DIR/.rankprobe-export; it stays for later exports, must be on the same
  // file system, and is removed by the caller.
  static absl::StatusOr<std::unique_ptr<StagedTree>> Open(
      FileSystem* file_system, std::string directory, Leftovers leftovers,
      std::string staging = "");
  ~StagedTree();

  // Creates a directory of the tree. ALREADY_EXISTS for a rank whose existing
  // directory was not made by an export, so that this is reported before the
  // work is done.
  absl::Status MakeDirectory(const std::string& path);
  // Path at which a file of the tree is being written.
  std::string PathOf(const std::string& path) const;
  // Makes `path` a second name of the finished file `existing`, or a copy if
  // the file system has no hard links.
  absl::Status Link(const std::string& path, const std::string& existing);

  // The .pt files of an earlier attempt, the largest first.
  absl::StatusOr<std::vector<File>> ReusableFiles();
  // XXH3 of such a file, if there is one of this length.
  std::optional<uint64_t> ReusableXxh3(const std::string& path,
                                       uint64_t length_bytes);
  // Moves such a file into this tree.
  absl::Status Reuse(const std::string& path);

  // Keeps files that are not published for a later attempt.
  void Keep() { keep_ = true; }
  // Replaces the directories DIR/step{N}/{rank} and DIR/manifest.json.
  // ALREADY_EXISTS, and nothing is moved, if one of them was not made by an
  // export. `run`: the run of the complete tree.
  absl::Status Publish(absl::string_view run = "");
  // Directories below DIR to which Publish moved files of other runs or jobs.
  const std::set<std::string>& moved_to() const { return moved_to_; }

 private:
  StagedTree(FileSystem* file_system, std::string directory,
             std::string staging);
  absl::Status PutBack();
  absl::Status Start(Leftovers leftovers);
  // Moves directories of other runs or jobs that are in the way of `ranks`, or
  // that readers would take for a part of their dump.
  absl::Status MoveAside(const std::set<std::string>& ranks,
                         absl::string_view run, bool manifest);
  // The run of an existing rank directory, if it belongs to another run or job.
  std::optional<std::string> OthersRun(const std::string& rank,
                                       absl::string_view run);
  absl::Status MoveStep(const std::string& step,
                        const std::vector<std::string>& ranks);
  std::string KeptPath(const std::string& path) const;
  absl::StatusOr<uint64_t> HashKept(const std::string& path,
                                    uint64_t length_bytes);
  // Calls fn with the relative path of every .pt file below `root`.
  template <typename Fn>
  absl::Status ForEachPt(const std::string& root, Fn fn);

  FileSystem* const file_system_;
  const std::string directory_;
  const bool staging_stays_;
  const std::string temporary_;
  PublishedRanks published_;
  std::unique_ptr<FileLock> lock_;
  // Files of an earlier attempt may exist.
  bool reuse_ = false;
  bool keep_ = false;
  std::set<std::string> moved_to_;
  // This object created the directory, and removes it if nothing is published.
  bool made_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_STAGED_TREE_H_
