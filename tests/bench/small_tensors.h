// SPDX-License-Identifier: Apache-2.0
// One step with many small tensors of different content, through a session.
#ifndef RANKPROBE_TESTS_BENCH_SMALL_TENSORS_H_
#define RANKPROBE_TESTS_BENCH_SMALL_TENSORS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "agent/runtime/session/session.h"

namespace rankprobe::bench {

// As step 0 of the session's rank, `count` float32 tensors of 1 KiB, four to a
// call; until COMMITTED.
absl::Status SendSmallTensors(uint64_t count, Session* session);

}  // namespace rankprobe::bench

#endif  // RANKPROBE_TESTS_BENCH_SMALL_TENSORS_H_
