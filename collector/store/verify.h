// Looks at every row of an archive, and at the bytes if asked, while it is in
// use. Faults are named with run, step and payload.
// Threads: pure functions over an Index and a PayloadStore, both thread-safe.
#ifndef RANKPROBE_COLLECTOR_STORE_VERIFY_H_
#define RANKPROBE_COLLECTOR_STORE_VERIFY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// `progress` is called now and then; its error ends the verification.
absl::StatusOr<v1::VerifyReport> VerifyArchive(
    Index* index, PayloadStore* payloads, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_VERIFY_H_
