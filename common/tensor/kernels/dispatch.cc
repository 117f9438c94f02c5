// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "common/tensor/kernels/kernels.h"

namespace rankprobe::kernels {
namespace {

struct Usable {
  std::array<const Table*, 3> tables{};
  size_t count = 0;
};

Usable Probe() {
  Usable usable;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    usable.tables[usable.count++] = &kAvx512Table;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    usable.tables[usable.count++] = &kAvx2Table;
  }
#endif
  usable.tables[usable.count++] = &kBaselineTable;
  return usable;
}

const Usable& Cached() {
  static const Usable usable = Probe();
  return usable;
}

}  // namespace

const Table* const* UsableTables(size_t* count) {
  *count = Cached().count;
  return Cached().tables.data();
}

const Table& BestKernels() { return *Cached().tables[0]; }

}  // namespace rankprobe::kernels
