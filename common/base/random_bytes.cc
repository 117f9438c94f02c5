// SPDX-License-Identifier: Apache-2.0
#include "common/base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace rankprobe {

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t have = 0; have < count;) {
    const ssize_t got = ::getrandom(bytes.data() + have, count - have, 0);
    if (got > 0) {
      have += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      std::perror("rankprobe: getrandom");
      std::abort();
    }
  }
  return bytes;
}

}  // namespace rankprobe
