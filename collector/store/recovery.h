// SPDX-License-Identifier: Apache-2.0
// Checks before an archive is opened: whether there is one, and what its index
// says of its segments. Threads: pure functions over a FileSystem and an Index.
#ifndef RANKPROBE_COLLECTOR_STORE_RECOVERY_H_
#define RANKPROBE_COLLECTOR_STORE_RECOVERY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "common/io/file_system.h"

namespace rankprobe {

// True where nothing has been stored yet, so that an index may be made. An
// index that is gone while the rest of the archive is there is DATA_LOSS: a new
// one would call all of it garbage.
absl::StatusOr<bool> IsFresh(const std::string& data_dir,
                             FileSystem* file_system);

// Begins and ends what --rebuild-index does. An index of which it is not ended
// lacks what had not been found again, and would call it garbage:
// CheckRebuildEnded is DATA_LOSS then.
absl::Status NoteRebuildBegun(const std::string& data_dir,
                              FileSystem* file_system);
absl::Status NoteRebuildEnded(const std::string& data_dir,
                              FileSystem* file_system);
absl::Status CheckRebuildEnded(const std::string& data_dir,
                               FileSystem* file_system);

// `directory`: of the segments. One that is not there any more, or shorter than at
// a clean end, makes that end none: what lay there is to be found out.
absl::StatusOr<PayloadStore::Known> KnownSegments(Index* index,
                                                  const std::string& directory,
                                                  FileSystem* file_system);

// How many synced writes are noted beside the index; 0 where none can be read.
uint64_t SyncCountBeside(const std::string& data_dir, FileSystem* file_system);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RECOVERY_H_
