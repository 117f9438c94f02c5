// SPDX-License-Identifier: Apache-2.0
// CRC-32 on processors without the wide form: libdeflate uses what they
// support. Built instead of crc32_wide.cc.
#include <libdeflate.h>

#include "common/tensor/kernels/crc32.h"

namespace rankprobe::kernels {

bool HasWideCrc32() { return false; }

uint32_t WideCrc32(uint32_t crc, const void* data, size_t bytes) {
  return libdeflate_crc32(crc, data, bytes);
}

uint32_t WideF32Crc32(uint32_t crc, const void* data, size_t count,
                      FloatStats* stats) {
  return NarrowF32Crc32(crc, data, count, stats);
}

}  // namespace rankprobe::kernels
