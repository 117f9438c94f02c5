// SPDX-License-Identifier: Apache-2.0
#include "common/base/same_bytes.h"

#include <cstddef>

namespace rankprobe {

bool SameBytes(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  // Volatile, so that the compiler does not end the loop early.
  volatile unsigned char differs = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differs = static_cast<unsigned char>(
        differs | static_cast<unsigned char>(a[i] ^ b[i]));
  }
  return differs == 0;
}

}  // namespace rankprobe
