// SPDX-License-Identifier: Apache-2.0
// This process' limit of open files and sockets.
#ifndef RANKPROBE_COLLECTOR_SERVER_DESCRIPTOR_LIMIT_H_
#define RANKPROBE_COLLECTOR_SERVER_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace rankprobe {

// Raises the limit to the most that the system allows this process (at most
// about a million) and returns the new limit.
inline uint64_t RaiseDescriptorLimit() {
  constexpr rlim_t kEnough = 1 << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlimit wanted = limit;
  wanted.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kEnough));
  if (::setrlimit(RLIMIT_NOFILE, &wanted) == 0) limit = wanted;
  return limit.rlim_cur;
}

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_DESCRIPTOR_LIMIT_H_
