// SPDX-License-Identifier: Apache-2.0
// Parallel loop that has finished when the call returns. The caller's thread is
// one of the workers, so it does all the work if no more threads can be
// started.
#ifndef RANKPROBE_COMMON_BASE_PARALLEL_FOR_H_
#define RANKPROBE_COMMON_BASE_PARALLEL_FOR_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace rankprobe {

// Calls `work(index, worker)` once for each index below `count`. Indices are
// assigned in order to at most `workers` threads; no two calls with the same
// `worker` (below `workers`) overlap, so a worker may have its own state. After
// an error no more indices are assigned, and calls in progress finish: all
// indices before the failed one are done. Returns the error that occurred
// first. `work` must not throw.
absl::Status ParallelFor(
    size_t count, size_t workers,
    absl::FunctionRef<absl::Status(size_t index, size_t worker)> work);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_PARALLEL_FOR_H_
