// SPDX-License-Identifier: Apache-2.0
// The avx2 build of the block kernels; compile flags in
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

extern const Table kAvx2Table = MakeTable("avx2");

}  // namespace rankprobe::kernels
