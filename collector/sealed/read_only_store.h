// SPDX-License-Identifier: Apache-2.0
// An archive that is read as a Store, for the services that stand on one: what
// would write is refused in one line. It has no rollups, so questions over steps
// read records.
// Ownership: the reader, objects and clock outlive it. Thread-safe.
#ifndef RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_
#define RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/plan_log.h"
#include "collector/store/archive_reader.h"
#include "collector/store/store.h"
#include "common/base/clock.h"

namespace rankprobe {

// Deletes in the object store (store_deletion.h).
using StoreDeleter =
    std::function<absl::StatusOr<v1::DeleteReport>(const DeleteOptions&)>;
StoreDeleter NewStoreDeleter(ObjectStore* objects, const Clock* clock);

// `objects`: where it lies, which is what Verify looks at. `deleter`: empty where
// nobody may.
std::unique_ptr<Store> NewReadOnlyStore(ArchiveReader* reader,
                                        ObjectStore* objects,
                                        StoreDeleter deleter = {});
// Of a root, which takes no frames either: plans are kept in the log, and it is
// told who is there. The log outlives it.
std::unique_ptr<Store> NewRootStore(ArchiveReader* reader, ObjectStore* objects,
                                    PlanLog* plans, StoreDeleter deleter = {});

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_READ_ONLY_STORE_H_
