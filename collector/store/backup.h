// An online backup: a directory that rankprobed opens like the original. The
// index is copied from one snapshot, then the segments that it points into;
// ingest goes on, deletion and compaction must not (the caller's lock).
// Failure: nothing is left under the final name.
#ifndef RANKPROBE_COLLECTOR_STORE_BACKUP_H_
#define RANKPROBE_COLLECTOR_STORE_BACKUP_H_

#include <string>

#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "common/file_system.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// ALREADY_EXISTS when `directory` is there. `copy`: no bytes are shared.
absl::StatusOr<v1::BackupReport> BackupArchive(Index* index,
                                               PayloadStore* payloads,
                                               FileSystem* file_system,
                                               const std::string& directory,
                                               bool copy);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_BACKUP_H_
