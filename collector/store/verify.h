// SPDX-License-Identifier: Apache-2.0
// Looks at every row of an archive, and at the bytes if asked, while it is in
// use. Faults are named with run, step and payload; bytes that are damaged are
// CORRUPT with their place, and marked; those that were and are right are not any
// more. Threads: free functions over a core that outlives the call.
#ifndef RANKPROBE_COLLECTOR_STORE_VERIFY_H_
#define RANKPROBE_COLLECTOR_STORE_VERIFY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/store_core.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// Counts a fault; the first 100 are kept in words.
void AddFault(const std::string& text, v1::VerifyReport* report);

// `progress` is called now and then; its error ends the verification. May be empty.
absl::StatusOr<v1::VerifyReport> VerifyArchive(
    StoreCore* core, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_VERIFY_H_
