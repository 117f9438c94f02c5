// SPDX-License-Identifier: Apache-2.0
// The statistics kernel on the host: what a GPU computes, bit by bit, in one
// thread. For tests, and for the driver library that plays a GPU in them.
// Pure functions; the addresses in the arguments are those of host memory.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_HOST_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_HOST_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "agent/runtime/device/statistics_kernel.h"

namespace rankprobe::device {

using HostReduce = void (*)(const ReduceArguments& arguments, uint32_t blocks);

// The kernel of this name ("rankprobe_f32"); null: there is none.
HostReduce HostReduceOf(absl::string_view name);

// rankprobe_fold for `slots` blocks.
void HostFold(const FoldArguments& arguments, uint32_t slots);

}  // namespace rankprobe::device

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_HOST_H_
