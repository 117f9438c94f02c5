// SPDX-License-Identifier: Apache-2.0
// The avx512 build of the block kernels; compile flags in
// common/tensor/CMakeLists.txt.
#include <immintrin.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <initializer_list>

#include "common/tensor/kernels/kernels.h"

namespace rankprobe::kernels {
namespace {
#include "common/tensor/kernels/kernels.inc"
}  // namespace

extern const Table kAvx512Table = MakeTable("avx512");

}  // namespace rankprobe::kernels
