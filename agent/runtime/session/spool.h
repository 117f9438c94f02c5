// SPDX-License-Identifier: Apache-2.0
// Frames on disk until they are committed, so that they outlive the process.
//
// A directory holds the spools of several lives of a rank (or of several
// ranks): {incarnation}.lock, held while its process lives, and
// {incarnation}.{number}.spool, each
//   "RPQ3" | hello frame | upload frames ...
//   frame: length u32 | crc32c u32 | bytes       (little-endian)
// The hello holds the identity and the incarnation's secret. A torn frame at
// the end of a file marks the point where its process was killed.
//
// Ownership: the session; FileSystem outlives it. Threads: one at a time.
// Failure: if the spool is full or the disk fails, no more frames are accepted,
// and this is reported; frames in memory are sent anyway.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class Spool {
 public:
  struct Options {
    std::string directory;
    uint64_t max_bytes = uint64_t{4} << 30;
    uint64_t file_bytes = 64 << 20;
    // No file is created if less than this would stay free: Open and Append
    // return RESOURCE_EXHAUSTED.
    uint64_t min_free_bytes = 0;
    // Hello.incarnation_secret.
    std::string secret;
  };

  // Removes its files if everything is committed.
  ~Spool();

  static absl::StatusOr<std::unique_ptr<Spool>> Open(
      const Options& options, const v1::Identity& identity,
      FileSystem* file_system);

  // Appends an encoded UploadFrame, given in three pieces. Sequence numbers
  // must rise. Returns RESOURCE_EXHAUSTED beyond max_bytes; then further frames
  // are refused until all frames so far are committed, so that the spool has no
  // holes.
  absl::Status Append(uint64_t sequence, absl::string_view head,
                      absl::string_view tail, absl::string_view foot);
  // Marks a frame that must not be in the spool. Later frames are refused until
  // it is committed.
  void Skip(uint64_t sequence);
  // Deletes the files whose frames are all committed.
  void Committed(uint64_t sequence);

  uint64_t bytes() const { return bytes_; }

 private:
  struct Part {
    std::string path;
    uint64_t last_sequence = 0;
    uint64_t bytes = 0;
  };

  Spool(const Options& options, const v1::Identity& identity,
        FileSystem* file_system, std::string lock_path,
        std::unique_ptr<FileLock> lock);
  absl::Status NextFile();
  void RemoveFirst();

  const Options options_;
  const v1::Identity identity_;
  const std::string lock_path_;
  FileSystem* const file_system_;
  const std::unique_ptr<FileLock> lock_;
  std::unique_ptr<WritableFile> file_;
  std::deque<Part> parts_;
  uint64_t bytes_ = 0;
  uint64_t next_number_ = 0;
  uint64_t last_sequence_ = 0;
  uint64_t committed_ = 0;
  // The newest frame that was skipped.
  uint64_t skipped_ = 0;
  bool refusing_ = false;
};

// Whether this is a regular file of this user that no other user can change.
// The contents of a spool are sent in this user's name.
bool IsOwnFile(const std::string& path);

// The spool files of a killed process, locked until this object is destroyed.
class OrphanSpool {
 public:
  using IsOwnFn = std::function<bool(const std::string& path)>;
  // Finds the spools whose process has ended. Files that cannot be read are
  // skipped, as are spools with a file of another user; `passed_over` counts
  // the latter.
  static std::vector<std::unique_ptr<OrphanSpool>> Find(
      const std::string& directory, FileSystem* file_system,
      const IsOwnFn& is_own, int* passed_over);

  const v1::Identity& identity() const { return hello_.identity(); }
  const std::string& secret() const { return hello_.incarnation_secret(); }

  // Returns the next encoded UploadFrame with its sequence number; NOT_FOUND at
  // the end.
  struct Frame {
    uint64_t sequence = 0;
    std::string bytes;
  };
  absl::StatusOr<Frame> Next();
  // Continues with the first frame.
  void Rewind();
  // Deletes the files; everything must have been delivered.
  absl::Status Remove();

 private:
  OrphanSpool(FileSystem* file_system, std::string lock_path,
              std::vector<std::string> files, std::unique_ptr<FileLock> lock)
      : file_system_(file_system),
        lock_path_(std::move(lock_path)),
        files_(std::move(files)),
        lock_(std::move(lock)) {}
  absl::StatusOr<std::string> ReadFrame();

  FileSystem* const file_system_;
  const std::string lock_path_;
  const std::vector<std::string> files_;
  const std::unique_ptr<FileLock> lock_;
  v1::Hello hello_;
  size_t file_index_ = 0;
  std::unique_ptr<RandomAccessFile> file_;
  uint64_t size_ = 0;
  uint64_t at_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_H_
