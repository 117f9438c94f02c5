// LevelDB's files through the FileSystem seam, with directory entries synced
// where a machine crash could otherwise lose a file whose bytes are synced.
// Ownership: outlives the database; the FileSystem outlives it.
#ifndef RANKPROBE_COLLECTOR_STORE_INDEX_ENV_H_
#define RANKPROBE_COLLECTOR_STORE_INDEX_ENV_H_

#include <memory>

#include "common/file_system.h"
#include "leveldb/env.h"

namespace rankprobe {

std::unique_ptr<leveldb::Env> NewIndexEnv(FileSystem* file_system);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_INDEX_ENV_H_
