// SPDX-License-Identifier: Apache-2.0
// Objects as files of a directory, which several machines may share (Lustre,
// GPFS, NFS): the key is the path below it.
//
// An object is written to a separate file in `.uploads`, synced, and then gets
// its name: by link(2), which fails if the name is taken and is atomic on every
// POSIX file system, or by rename(2). Then the directory is synced, so it
// survives the machine. What a crash leaves in `.uploads` is never listed.
//
// Links: none is followed below the directory if the FileSystem follows none
// (confined_file_system.h; open_object_store.h ensures this). A link, a FIFO or
// a device is listed with 0 bytes, cannot be read, and a Delete removes only
// the name; a link above the requested path is PERMISSION_DENIED.
// Ownership: the FileSystem outlives it. Thread-safe.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_DIRECTORY_OBJECT_STORE_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_DIRECTORY_OBJECT_STORE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "collector/object_store/object_store.h"

namespace rankprobe {

class DirectoryObjectStore : public ObjectStore {
 public:
  // The directory is created with the first object.
  DirectoryObjectStore(FileSystem* file_system, std::string directory);

  std::string name() const override;
  absl::Status Put(const std::string& key, absl::string_view bytes,
                   PutMode mode) override;
  absl::Status PutFile(const std::string& key, FileSystem* file_system,
                       const std::string& path) override;
  absl::StatusOr<std::string> Get(const std::string& key, uint64_t offset,
                                  uint64_t bytes) override;
  absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                     uint64_t bytes) override;
  absl::StatusOr<ObjectList> List(const std::string& prefix,
                                  const std::string& start_after,
                                  size_t most) override;
  absl::Status Delete(const std::string& key) override;

 private:
  struct Walk;

  std::string PathOf(absl::string_view key) const;
  // Creates the directory and its parents, and syncs their entries.
  absl::Status MakeDirectories(const std::string& directory);
  // Creates a new file with a unique name among the uploads.
  absl::StatusOr<std::unique_ptr<WritableFile>> BeginUpload(std::string* path);
  // Gives the upload the key's name.
  absl::Status Publish(const std::string& upload, const std::string& key,
                       PutMode mode);
  absl::Status ListBelow(const std::string& directory,
                         const std::string& key_prefix, Walk* walk);
  // `size` is that of an object; absent for a directory.
  absl::Status Emit(const std::string& key_prefix, const std::string& name,
                    std::optional<uint64_t> size, Walk* walk);

  FileSystem* const file_system_;
  const std::string directory_;
  absl::Mutex mutex_;
  // Directories whose entry in the parent is known to be on the disk.
  absl::flat_hash_set<std::string> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_DIRECTORY_OBJECT_STORE_H_
