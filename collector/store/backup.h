// SPDX-License-Identifier: Apache-2.0
// An online backup: a directory that rankprobed opens like the original. The
// index is copied from one snapshot, then the segments that it points into;
// ingest goes on, deletion and compaction must not (the caller's lock).
// Failure: nothing is left under the final name. What is written until then is
// DIR.tmp; one that is there is deleted only if a backup made it.
#ifndef RANKPROBE_COLLECTOR_STORE_BACKUP_H_
#define RANKPROBE_COLLECTOR_STORE_BACKUP_H_

#include <string>

#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// `directory` is one of `target`, the segments are read from `file_system`.
// ALREADY_EXISTS when it is there, FAILED_PRECONDITION for a DIR.tmp that is
// somebody's. `copy`: no bytes are shared.
absl::StatusOr<v1::BackupReport> BackupArchive(
    Index* index, PayloadStore* payloads, FileSystem* file_system,
    FileSystem* target, const std::string& directory, bool copy);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_BACKUP_H_
