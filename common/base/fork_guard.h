// SPDX-License-Identifier: Apache-2.0
// Detector of a forked child of the process that made the guard, without a
// system call: hooks check it first. Thread-safe. It detects forks by libc
// (fork, Python's os.fork), after which the other threads are missing.
#ifndef RANKPROBE_COMMON_BASE_FORK_GUARD_H_
#define RANKPROBE_COMMON_BASE_FORK_GUARD_H_

#include <cstdint>

namespace rankprobe {

class ForkGuard {
 public:
  ForkGuard() : generation_(Generation()) {}
  bool InChild() const { return generation_ != Generation(); }

 private:
  // Number of forks between the first process and this one.
  static uint64_t Generation();

  const uint64_t generation_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_FORK_GUARD_H_
