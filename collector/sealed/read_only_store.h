// SPDX-License-Identifier: Apache-2.0
// An archive that is read as a Store, for the services that stand on one: what
// would write is refused in one line. It has no rollups, so questions over steps
// read records.
// Ownership: the reader outlives it. Thread-safe.
#ifndef RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_
#define RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_

#include <memory>
#include <string>

#include "collector/store/archive_reader.h"
#include "collector/store/store.h"

namespace rankprobe {

// `name`: of where it lies, for the line.
std::unique_ptr<Store> NewReadOnlyStore(ArchiveReader* reader,
                                        std::string name);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_
