// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/device/statistics_kernel_host.h"

#include <array>

namespace rankprobe::device {
namespace {

// Like statistics_kernel.cu, with the threads of a step one after the other.
template <typename Partial>
Partial FoldBlock(std::array<Partial, kThreads>* shared) {
  for (uint32_t width = kThreads / 2; width > 0; width /= 2) {
    for (uint32_t thread = 0; thread < width; ++thread)
      Merge((*shared)[thread + width], &(*shared)[thread]);
  }
  return (*shared)[0];
}

template <typename Type, uint32_t kVector>
void Reduce(const ReduceArguments& a, uint32_t blocks) {
  using Partial = typename Type::Partial;
  std::array<Partial, kThreads> shared;
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      ReduceOfThread<Type, kVector>(a, block, blocks, thread, &shared[thread]);
    Pointer<Partial>::To(a.partials)[block] = FoldBlock(&shared);
  }
  *Pointer<Header>::To(a.header) = {a.partials, blocks,
                                    Partial::kIsFloat ? 1U : 0U};
}

template <typename Partial>
void Fold(const Header& header, Partial* out) {
  std::array<Partial, kThreads> shared;
  for (uint32_t thread = 0; thread < kThreads; ++thread)
    FoldOfThread(header, thread, &shared[thread]);
  *out = FoldBlock(&shared);
}

}  // namespace

HostReduce HostReduceOf(absl::string_view name) {
#define RANKPROBE_REDUCE_KERNEL(kernel, type, vector) \
  if (name == "rankprobe_" #kernel) return &Reduce<type, vector>;
#include "agent/runtime/device/statistics_kernel_table.inc"
#undef RANKPROBE_REDUCE_KERNEL
  return nullptr;
}

void HostFold(const FoldArguments& arguments, uint32_t slots) {
  const auto* const headers = Pointer<const Header>::To(arguments.headers);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (headers[slot].is_float != 0) {
      Fold(headers[slot], Pointer<FloatPartial>::To(arguments.results) + slot);
    } else {
      Fold(headers[slot], Pointer<IntPartial>::To(arguments.results) + slot);
    }
  }
}

}  // namespace rankprobe::device
