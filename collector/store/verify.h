// SPDX-License-Identifier: Apache-2.0
// Verification of every row of an archive, and of the bytes if requested, while
// it is in use. Faults name run, step and payload. Damaged bytes are marked and
// reported as CORRUPT with their place; the mark is removed if they are correct
// again. Threads: free functions over a core that outlives the call.
#ifndef RANKPROBE_COLLECTOR_STORE_VERIFY_H_
#define RANKPROBE_COLLECTOR_STORE_VERIFY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/store_core.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// Counts a fault; the texts of the first 100 are kept.
void AddFault(const std::string& text, v1::VerifyReport* report);

// `progress` is called from time to time; its error ends the verification. May
// be empty.
absl::StatusOr<v1::VerifyReport> VerifyArchive(
    StoreCore* core, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_VERIFY_H_
