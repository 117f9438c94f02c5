// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const auto& target : rankprobe::fuzz::kTargets) {
    if (std::strcmp(target.name, RANKPROBE_FUZZ_TARGET) == 0)
      target.run({reinterpret_cast<const char*>(data), size});
  }
  return 0;
}
