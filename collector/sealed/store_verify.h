// SPDX-License-Identifier: Apache-2.0
// Verification of an archive in an object store while it is in use: every log
// of every run can be read, each object that they name exists with the declared
// length, and, if requested, its bytes are those that were put. Faults name run
// and steps. What a janitor has removed meanwhile is not a fault.
// Threads: a pure function over the store, which is thread-safe. Memory: the
// entries of one run, and the names of its objects.
// Failure: the store's, if it does not answer; damage is in the report.
#ifndef RANKPROBE_COLLECTOR_SEALED_STORE_VERIFY_H_
#define RANKPROBE_COLLECTOR_SEALED_STORE_VERIFY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// `progress` is called from time to time; its error ends the verification. A
// subset (percent) reads the same objects each time.
absl::StatusOr<v1::VerifyReport> VerifyObjectStore(
    ObjectStore* store, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_VERIFY_H_
