// SPDX-License-Identifier: Apache-2.0
// Checks and repairs before an archive is opened: whether there is one, and what
// its index and its segments say of each other. Threads: free functions, before
// anybody else uses the archive. Failure: the first error.
#ifndef RANKPROBE_COLLECTOR_STORE_RECOVERY_H_
#define RANKPROBE_COLLECTOR_STORE_RECOVERY_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "common/io/file_system.h"

namespace rankprobe {

// What recovery found and did at Open.
struct RecoveryReport {
  uint64_t torn_bytes_dropped = 0;
  uint64_t dangling_payloads = 0;
  uint64_t segments = 0;
  // Payloads whose bytes are gone though they had been synced.
  uint64_t damaged_payloads = 0;
  // How many syncs the index has gone back behind what it had once synced.
  uint64_t lost_syncs = 0;
};

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

// `directory`: of the segments. One that no longer exists, or shorter than at
// a clean end, makes that end none: what lay there is to be found out.
absl::StatusOr<PayloadStore::Known> KnownSegments(Index* index,
                                                  const std::string& directory,
                                                  FileSystem* file_system);

// After an end without goodbye: what may be torn is removed, what is damaged is
// marked.
absl::Status RecoverChunks(Index* index, PayloadStore* segments,
                           RecoveryReport* report);

// Segments of table g.
absl::StatusOr<std::set<uint64_t>> NamedSegments(Index* index);
// The same after the index of an older archive (`schema`) has named its
// own. `may_have_begun`: the last process may have begun one and not named it.
absl::StatusOr<std::set<uint64_t>> NameSegments(Index* index,
                                                PayloadStore* segments,
                                                absl::string_view schema,
                                                bool may_have_begun);

// How many synced writes are noted beside the index; 0 where none can be read.
uint64_t SyncCountBeside(const std::string& data_dir, FileSystem* file_system);
void NoteSyncCountBeside(const std::string& data_dir, FileSystem* file_system,
                         uint64_t count);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RECOVERY_H_
