// SPDX-License-Identifier: Apache-2.0
// Looks at an archive in an object store while it is in use: that every log of
// every run can be read, that each object which they name is there and as long as
// they say, and, if asked, that its bytes are those that were put. Faults name run
// and steps. What a janitor has removed meanwhile is not a fault.
// Threads: a pure function over the store, which is thread-safe. Memory: the
// entries of one run, and the names of its objects.
// Failure: the store's, where it does not answer; damage is in the report.
#ifndef RANKPROBE_COLLECTOR_SEALED_STORE_VERIFY_H_
#define RANKPROBE_COLLECTOR_SEALED_STORE_VERIFY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// `progress` is called now and then; its error ends it. Of a subset (percent) the
// same objects are read each time.
absl::StatusOr<v1::VerifyReport> VerifyObjectStore(
    ObjectStore* store, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_VERIFY_H_
