// SPDX-License-Identifier: Apache-2.0
// Checks and repairs before an archive is opened: whether it exists, and
// whether its index and its segments agree. Threads: free functions, called
// before the archive is used. Failure: the first error.
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

// Result of the recovery at Open.
struct RecoveryReport {
  uint64_t torn_bytes_dropped = 0;
  uint64_t dangling_payloads = 0;
  uint64_t segments = 0;
  // Payloads whose bytes are lost although they had been synced.
  uint64_t damaged_payloads = 0;
  // Number of synced writes that the index has lost.
  uint64_t lost_syncs = 0;
};

// Returns true if nothing has been stored yet, so that an index may be created.
// A missing index in an existing archive is DATA_LOSS: a new one would treat
// all of its data as garbage.
absl::StatusOr<bool> IsFresh(const std::string& data_dir,
                             FileSystem* file_system);

// Record the begin and the end of --rebuild-index. An index whose rebuild has
// not ended lacks data that was not found yet, and would treat it as garbage;
// CheckRebuildEnded returns DATA_LOSS for it.
absl::Status NoteRebuildBegun(const std::string& data_dir,
                              FileSystem* file_system);
absl::Status NoteRebuildEnded(const std::string& data_dir,
                              FileSystem* file_system);
absl::Status CheckRebuildEnded(const std::string& data_dir,
                               FileSystem* file_system);

// `directory` is that of the segments. If a segment no longer exists, or is
// shorter than at the clean end, the end does not count as clean: the segments
// have to be checked.
absl::StatusOr<PayloadStore::Known> KnownSegments(Index* index,
                                                  const std::string& directory,
                                                  FileSystem* file_system);

// After an unclean end: removes rows of chunks that may be torn and marks those
// that are damaged.
absl::Status RecoverChunks(Index* index, PayloadStore* segments,
                           RecoveryReport* report);

// Returns the segments of table g.
absl::StatusOr<std::set<uint64_t>> NamedSegments(Index* index);
// Returns the segments of table g. `may_have_begun`: the last process may have
// begun a segment without naming it, which is added.
absl::StatusOr<std::set<uint64_t>> NameSegments(Index* index,
                                                PayloadStore* segments,
                                                bool may_have_begun);

// The version of the format of the index. A collector opens its own version.
inline constexpr char kFormatVersion[] = "10";
// Writes the version into a new archive. Returns whether it is new;
// FAILED_PRECONDITION for another version, of which nothing is changed.
absl::StatusOr<bool> CheckFormat(Index* index);

// Returns the number of synced writes that is noted in a file next to the
// index; 0 if it cannot be read.
uint64_t SyncCountBeside(const std::string& data_dir, FileSystem* file_system);
void NoteSyncCountBeside(const std::string& data_dir, FileSystem* file_system,
                         uint64_t count);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RECOVERY_H_
