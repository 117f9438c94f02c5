// SPDX-License-Identifier: Apache-2.0
// Window in which an agent may assume that the collector still has the bytes
// that it sent. Part of the wire contract (docs/wire.md, "Wire").
#ifndef RANKPROBE_COMMON_BASE_DEDUP_WINDOW_H_
#define RANKPROBE_COMMON_BASE_DEDUP_WINDOW_H_

#include <cstdint>

namespace rankprobe {

// An agent sends a payload again if it last sent it more steps ago than this.
inline constexpr int64_t kAgentRemembersSteps = 16;
// A collector frees a payload of a live run only when every rank is more than
// this many steps past all references to it.
inline constexpr int64_t kCollectorKeepsSteps = 2 * kAgentRemembersSteps;

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_DEDUP_WINDOW_H_
