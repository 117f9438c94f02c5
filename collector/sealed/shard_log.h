// SPDX-License-Identifier: Apache-2.0
// One collector's log of a run, in the store and on its own disk: how a set of
// sealed objects becomes visible.
//
//   DIR/{run key}/next/     the set in progress: its objects, and last
//                           `entry`, which makes it decided
//   DIR/{run key}/stored/   a copy of each entry that is in the store
//
// 1. Objects are written to next/ and synced; then `entry`. A crash before it
//    leaves nothing that counts; after it the same bytes are put again.
// 2. The objects are put under names that are their content.
// 3. The entry is put if there is none of its number: the commit. On
//    ALREADY_EXISTS the entry is read: the same bytes are this collector's own.
//    A sweep (a janitor's) ends the set: it is dropped, to be built again with
//    objects of other names, because those that were put may be removed. Other
//    bytes are another collector's, and this one is fenced: it puts nothing
//    more into this log.
// 4. The entry is read back, and only then noted in stored/. What is noted
//    there may be freed here.
//
// Ownership: store and file system outlive it. Not thread-safe.
// Failure: FAILED_PRECONDITION once it is fenced(), which is final; DATA_LOSS:
// what was read back differs; else the store's or the disk's (these may be
// FAILED_PRECONDITION as well), to be tried again.
#ifndef RANKPROBE_COLLECTOR_SEALED_SHARD_LOG_H_
#define RANKPROBE_COLLECTOR_SEALED_SHARD_LOG_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe {

class ShardLog {
 public:
  ShardLog(const std::string& directory, std::string run, std::string shard,
           ObjectStore* store, FileSystem* file_system);

  // Reads stored/ from its beginning, then what the store's log has after it
  // (if the disk lost the notes): each entry, in order.
  absl::Status Open(
      const std::function<void(const v1::SealedLogEntry&)>& on_entry);

  // Returns whether another collector writes this log; then nothing more is
  // ever stored.
  bool fenced() const { return !fenced_.ok(); }
  // Returns whether the set in progress was dropped: it has to be built again
  // after this log is opened again.
  bool swept() const { return swept_; }
  // Returns the origin of the objects of the next set
  // (SealedRecordsIndex.origin).
  std::string origin() const;
  // Returns what Open found missing in the store and put again; empty: nothing.
  const std::string& repaired() const { return repaired_; }
  // Returns whether there is a set that is decided and not stored yet.
  bool HasNext() const;

  // Returns an empty directory for the objects of the next set.
  // FAILED_PRECONDITION while there is one that is decided.
  absl::StatusOr<std::string> BeginNext();
  // Decides the next set: `entry` names objects as files NAME of that
  // directory. Sets run, shard and number.
  absl::Status DecideNext(v1::SealedLogEntry entry);
  // Does steps 2 to 4.
  absl::StatusOr<v1::SealedLogEntry> StoreNext();

 private:
  std::string NextFile(const std::string& name) const;
  std::string StoredFile(uint64_t sequence) const;
  absl::StatusOr<std::string> ReadSmall(const std::string& path) const;
  // Writes the file completely or not at all, and syncs it.
  absl::Status WriteSmall(const std::string& directory, const std::string& name,
                          absl::string_view bytes);
  absl::Status PutObjects(const v1::SealedLogEntry& entry);
  absl::Status PutName();
  // Handles an entry that another process has put at the number of this one.
  absl::Status GiveWay(const std::string& theirs);
  absl::Status NoteStored(const std::string& bytes, uint64_t sequence);

  const std::string directory_;
  const std::string run_;
  const std::string run_key_;
  const std::string shard_;
  ObjectStore* const store_;
  FileSystem* const file_system_;
  // Puts the last stored entry again if the store has lost it.
  absl::Status CheckLast(const std::string& bytes);
  uint64_t last_ = 0, last_sweep_ = 0;
  // EntryDigest of the last entry; empty if there is none.
  std::string last_digest_;
  std::string repaired_;
  bool named_ = false;
  bool swept_ = false;
  absl::Status fenced_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_SHARD_LOG_H_
