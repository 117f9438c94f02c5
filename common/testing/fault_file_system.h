// SPDX-License-Identifier: Apache-2.0
// A file system in memory that fails on demand and forgets at a crash what was
// not synced: bytes since the last Sync of their file, and directory entries
// (creations, renames, links, deletions) since the last SyncDirectory. For
// tests of everything that stands on FileSystem.
//
// Every call that touches the disk has a number; a fault is set for one number,
// so that a test can fail each call of an operation in turn.
// Threads: safe. Files opened before a crash fail afterwards.
#ifndef RANKPROBE_COMMON_TESTING_FAULT_FILE_SYSTEM_H_
#define RANKPROBE_COMMON_TESTING_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/io/file_system.h"

namespace rankprobe::testing {

enum class FaultKind {
  kNone,
  // The call fails without any effect.
  kIoError,
  kNoSpace,
  // A write stores half of its bytes and fails; other calls fail.
  kShortWrite,
  // A rename is done and then reported as failed; other calls fail.
  kTornRename,
  // The machine crashes at this call: it and all later ones fail until
  // CrashAndRestart.
  kCrash,
};

class FaultFileSystem : public FileSystem {
 public:
  // What a machine crash keeps of a file's un-synced bytes.
  enum class Unsynced { kDropped, kHalfKept };

  FaultFileSystem() = default;

  // Number of calls so far; reads are counted only with `count_reads`.
  uint64_t calls() const;
  void CountReads(bool count_reads);
  // Makes the call with this number (from 1) fail. Later ones work again,
  // except after kCrash.
  void FailCall(uint64_t number, FaultKind kind);
  // The call that failed: "Append /d/segments/0000000001.seg".
  std::string faulty_call() const;
  // From now on every call fails as `pick` returns; null ends that.
  void FailWhile(
      std::function<FaultKind(const std::string& op, const std::string& path)>
          pick);
  // Appends beyond this many bytes in all files fail for lack of space.
  void SetCapacity(uint64_t bytes);
  uint64_t used_bytes() const;
  // Arguments of ForgetSynced, in order; it never fails.
  struct Forgotten {
    std::string path;
    uint64_t offset = 0, bytes = 0;
  };
  std::vector<Forgotten> forgotten() const;
  // `delay` is called with the name of each call, without the lock: a slow
  // disk.
  void SetDelay(std::function<void(const std::string& op)> delay);

  // Crashes and restarts the machine.
  void CrashAndRestart(Unsynced unsynced = Unsynced::kDropped);

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) override;
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override;
  absl::Status CreateDirectories(const std::string& directory) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status SyncFile(const std::string& path) override;
  absl::Status Delete(const std::string& path) override;
  absl::Status DeleteTree(const std::string& directory) override;
  absl::Status Truncate(const std::string& path, uint64_t size) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;
  absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) override;

 private:
  struct Inode {
    std::string data;
    // Data that survives a machine crash.
    std::string durable;
  };
  class File;
  class Reader;
  class Held;

  // Counts the call and returns how it must fail.
  FaultKind Begin(const std::string& op, const std::string& path, bool read)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status ErrorOf(FaultKind kind, const std::string& op,
                              const std::string& path);
  absl::Status Check(const std::string& op, const std::string& path,
                     bool read = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AppendTo(const std::shared_ptr<Inode>& inode, uint64_t life,
                        const std::string& path,
                        absl::Span<const absl::string_view> pieces);
  absl::Status SyncInode(const std::shared_ptr<Inode>& inode, uint64_t life,
                         const std::string& path);
  void Delay(const std::string& op);
  uint64_t UsedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  bool count_reads_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t fault_at_ ABSL_GUARDED_BY(mutex_) = 0;
  FaultKind fault_kind_ ABSL_GUARDED_BY(mutex_) = FaultKind::kNone;
  std::string faulty_call_ ABSL_GUARDED_BY(mutex_);
  std::function<FaultKind(const std::string&, const std::string&)> pick_
      ABSL_GUARDED_BY(mutex_);
  std::function<void(const std::string&)> delay_ ABSL_GUARDED_BY(mutex_);
  uint64_t capacity_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  std::vector<Forgotten> forgotten_ ABSL_GUARDED_BY(mutex_);
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  // Incremented at each crash; older file objects are then invalid.
  uint64_t life_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, std::shared_ptr<Inode>> files_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Inode>> durable_files_
      ABSL_GUARDED_BY(mutex_);
  std::set<std::string> directories_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> locks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COMMON_TESTING_FAULT_FILE_SYSTEM_H_
