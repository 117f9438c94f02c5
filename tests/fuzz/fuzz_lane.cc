// SPDX-License-Identifier: Apache-2.0
// Any references into shared memory, and writes to it between them.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::fuzz::LaneReference({reinterpret_cast<const char*>(data), size});
  return 0;
}
