// SPDX-License-Identifier: Apache-2.0
// An online backup: a directory that rankprobed opens like the original. The
// index is copied from one snapshot, then the segments that it points into.
// Ingest continues; the caller's lock excludes deletion and compaction.
// Failure: nothing is left under the final name. Until the end the backup is
// written to DIR.tmp; an existing DIR.tmp is deleted only if a backup made it.
#ifndef RANKPROBE_COLLECTOR_STORE_BACKUP_H_
#define RANKPROBE_COLLECTOR_STORE_BACKUP_H_

#include <string>

#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// `directory` is one of `target`; the segments are read from `file_system`.
// ALREADY_EXISTS if it exists, FAILED_PRECONDITION if DIR.tmp was not made by a
// backup. With `copy`, no files share bytes with the archive.
absl::StatusOr<v1::BackupReport> BackupArchive(
    Index* index, PayloadStore* payloads, FileSystem* file_system,
    FileSystem* target, const std::string& directory, bool copy);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_BACKUP_H_
