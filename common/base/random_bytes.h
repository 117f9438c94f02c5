// SPDX-License-Identifier: Apache-2.0
// Unpredictable bytes from the operating system: session ids, secrets.
// Thread-safe. If the system has none, the process ends, because it cannot make
// secrets.
#ifndef RANKPROBE_COMMON_BASE_RANDOM_BYTES_H_
#define RANKPROBE_COMMON_BASE_RANDOM_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace rankprobe {

std::string RandomBytes(size_t count);

// The same for the distributions of absl/random.
class RandomBits {
 public:
  using result_type = uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return UINT64_MAX; }
  result_type operator()();
};

// Replaces the operating system in a test, so that a run is repeatable. It must
// outlive its use; null restores the operating system.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual void Fill(char* bytes, size_t count) = 0;

  static void SetForTest(RandomSource* source);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_RANDOM_BYTES_H_
