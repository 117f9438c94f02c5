// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/kernels/crc32.h"

#include <libdeflate.h>

namespace rankprobe::kernels {

namespace {

bool Wide() {
  static const bool wide = HasWideCrc32();
  return wide;
}

}  // namespace

uint32_t Crc32(uint32_t crc, const void* data, size_t bytes) {
  return Wide() ? WideCrc32(crc, data, bytes)
                : libdeflate_crc32(crc, data, bytes);
}

uint32_t F32Crc32(uint32_t crc, const void* data, size_t count,
                  FloatStats* stats) {
  return Wide() ? WideF32Crc32(crc, data, count, stats)
                : NarrowF32Crc32(crc, data, count, stats);
}

uint32_t NarrowF32Crc32(uint32_t crc, const void* data, size_t count,
                        FloatStats* stats) {
  BestKernels().f32(data, count, stats);
  return libdeflate_crc32(crc, data, count * sizeof(float));
}

}  // namespace rankprobe::kernels
