// SPDX-License-Identifier: Apache-2.0
// statistics_kernel.h as kernels of a GPU. The build compiles this file to PTX
// with clang alone (no CUDA toolkit), for compute capability 7.0; a driver
// translates it for the GPU that it has.
#include "agent/runtime/device/statistics_kernel.h"

namespace rankprobe::device {

// Whether this is the thread that holds the block's result.
template <typename Partial>
RANKPROBE_HOST_DEVICE inline bool FoldBlock(uint32_t thread,
                                              Partial* shared) {
  __syncthreads();
  for (uint32_t width = kThreads / 2; width > 0; width /= 2) {
    if (thread < width) {
      Partial p = shared[thread];
      Merge(shared[thread + width], &p);
      shared[thread] = p;
    }
    __syncthreads();
  }
  return thread == 0;
}

template <typename Type, uint32_t kVector>
RANKPROBE_HOST_DEVICE inline void Reduce(const ReduceArguments& a) {
  using Partial = typename Type::Partial;
  static __attribute__((shared)) Partial shared[kThreads];
  const uint32_t thread = __nvvm_read_ptx_sreg_tid_x(),
                 block = __nvvm_read_ptx_sreg_ctaid_x(),
                 blocks = __nvvm_read_ptx_sreg_nctaid_x();
  ReduceOfThread<Type, kVector>(a, block, blocks, thread, &shared[thread]);
  if (!FoldBlock(thread, shared)) return;
  Pointer<Partial>::To(a.partials)[block] = shared[0];
  if (block == 0) {
    *Pointer<Header>::To(a.header) = {a.partials, blocks,
                                      Partial::kIsFloat ? 1U : 0U};
  }
}

template <typename Partial>
RANKPROBE_HOST_DEVICE inline void Fold(const Header& header, Partial* out) {
  static __attribute__((shared)) Partial shared[kThreads];
  const uint32_t thread = __nvvm_read_ptx_sreg_tid_x();
  FoldOfThread(header, thread, &shared[thread]);
  if (FoldBlock(thread, shared)) *out = shared[0];
}

}  // namespace rankprobe::device

// Passed by value, as required for a kernel's arguments.
#define RANKPROBE_REDUCE_KERNEL(name, type, vector)              \
  extern "C" __attribute__((global)) void rankprobe_##name(      \
      const rankprobe::device::ReduceArguments a) {              \
    rankprobe::device::Reduce<rankprobe::device::type, vector>(a); \
  }
#include "agent/runtime/device/statistics_kernel_table.inc"

extern "C" __attribute__((global)) void rankprobe_fold(
    const rankprobe::device::FoldArguments a) {
  namespace device = rankprobe::device;
  const uint32_t slot = __nvvm_read_ptx_sreg_ctaid_x();
  const device::Header header =
      device::Pointer<const device::Header>::To(a.headers)[slot];
  if (header.is_float != 0) {
    device::Fold(header,
                 device::Pointer<device::FloatPartial>::To(a.results) + slot);
  } else {
    device::Fold(header,
                 device::Pointer<device::IntPartial>::To(a.results) + slot);
  }
}
