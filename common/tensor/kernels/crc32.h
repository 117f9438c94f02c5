// SPDX-License-Identifier: Apache-2.0
// CRC-32 as in zlib, with the fastest instructions of this CPU. Pure and
// thread-safe; the result does not depend on the CPU.
#ifndef RANKPROBE_COMMON_TENSOR_KERNELS_CRC32_H_
#define RANKPROBE_COMMON_TENSOR_KERNELS_CRC32_H_

#include <cstddef>
#include <cstdint>

#include "common/tensor/kernels/kernels.h"

namespace rankprobe::kernels {

// Continues `crc` (0 to begin with) over `data`.
uint32_t Crc32(uint32_t crc, const void* data, size_t bytes);

// The same over `count` float32, whose statistics are added to `stats`: in one
// pass if the CPU supports it.
uint32_t F32Crc32(uint32_t crc, const void* data, size_t count,
                  FloatStats* stats);

// Whether the CPU has 512-bit carry-less multiplication.
bool HasWideCrc32();
// Require HasWideCrc32().
uint32_t WideCrc32(uint32_t crc, const void* data, size_t bytes);
uint32_t WideF32Crc32(uint32_t crc, const void* data, size_t count,
                      FloatStats* stats);
// Works on every CPU, in two passes.
uint32_t NarrowF32Crc32(uint32_t crc, const void* data, size_t count,
                        FloatStats* stats);

}  // namespace rankprobe::kernels

#endif  // RANKPROBE_COMMON_TENSOR_KERNELS_CRC32_H_
