// SPDX-License-Identifier: Apache-2.0
// An archive that is read as a Store, for the services that stand on one: what
// would write is refused in one line. It has no rollups, so questions over steps
// read records.
// Ownership: the reader outlives it. Thread-safe.
#ifndef RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_
#define RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_

#include <memory>
#include <string>

#include "collector/sealed/plan_log.h"
#include "collector/store/archive_reader.h"
#include "collector/store/store.h"

namespace rankprobe {

// `name`: of where it lies, for the line.
std::unique_ptr<Store> NewReadOnlyStore(ArchiveReader* reader,
                                        std::string name);
// Of a root, which takes no frames either: plans are kept in the log, and it is
// told who is there. The log outlives it.
std::unique_ptr<Store> NewRootStore(ArchiveReader* reader, std::string name,
                                    PlanLog* plans);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_
