// SPDX-License-Identifier: Apache-2.0
// LevelDB's files through the FileSystem interface, with directory entries
// synced where a machine crash could otherwise lose a file whose bytes are
// synced.
// Ownership: outlives the database; the FileSystem and the flag outlive it.
#ifndef RANKPROBE_COLLECTOR_STORE_INDEX_ENV_H_
#define RANKPROBE_COLLECTOR_STORE_INDEX_ENV_H_

#include <atomic>
#include <memory>

#include "common/io/file_system.h"
#include "leveldb/env.h"

namespace rankprobe {

// `entries_dirty` is set when the directory entry of a log or a rename may not
// be on the disk yet. The caller that syncs the directory clears it before the
// sync.
std::unique_ptr<leveldb::Env> NewIndexEnv(FileSystem* file_system,
                                          std::atomic<bool>* entries_dirty);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_INDEX_ENV_H_
