// SPDX-License-Identifier: Apache-2.0
// Fields of a process' account that matter to readers, for change detection.
// Pure function.
#ifndef RANKPROBE_COLLECTOR_SEALED_SEAL_BLOCK_H_
#define RANKPROBE_COLLECTOR_SEALED_SEAL_BLOCK_H_

#include <string>

#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// Returns equal strings for equal accounts: losses, refusals, undelivered data.
// The committed sequence is excluded because it changes with each frame.
std::string AccountOf(const v1::IncarnationRow& row);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_SEAL_BLOCK_H_
