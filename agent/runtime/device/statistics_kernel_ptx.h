// SPDX-License-Identifier: Apache-2.0
// statistics_kernel.cu as PTX, the text that a CUDA driver translates for its
// GPU. Made by the build.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_PTX_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_PTX_H_

namespace rankprobe {

extern const char kStatisticsKernelPtx[];

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_PTX_H_
