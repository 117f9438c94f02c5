// SPDX-License-Identifier: Apache-2.0
#include "common/base/random_bytes.h"

#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace rankprobe {
namespace {

std::atomic<RandomSource*> test_source{nullptr};

}  // namespace

void RandomSource::SetForTest(RandomSource* source) { test_source = source; }

RandomBits::result_type RandomBits::operator()() {
  result_type bits = 0;
  const std::string bytes = RandomBytes(sizeof(bits));
  std::memcpy(&bits, bytes.data(), sizeof(bits));
  return bits;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  if (RandomSource* const source = test_source; source != nullptr) {
    source->Fill(bytes.data(), count);
    return bytes;
  }
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
