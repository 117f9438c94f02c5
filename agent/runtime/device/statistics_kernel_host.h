// SPDX-License-Identifier: Apache-2.0
// The statistics kernel on the host: computes the same bits as a GPU, in one
// thread. For tests, and for the fake driver library in them. Pure functions;
// the addresses in the arguments are host addresses.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_HOST_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_HOST_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "agent/runtime/device/statistics_kernel.h"

namespace rankprobe::device {

using HostReduce = void (*)(const ReduceArguments& arguments, uint32_t blocks);

// Returns the kernel of this name ("rankprobe_f32"), or null if there is none.
HostReduce HostReduceOf(absl::string_view name);

// Runs rankprobe_fold for `slots` blocks.
void HostFold(const FoldArguments& arguments, uint32_t slots);

}  // namespace rankprobe::device

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_HOST_H_
