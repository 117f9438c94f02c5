// SPDX-License-Identifier: Apache-2.0
// The baseline build of the block kernels; compile flags in
// common/tensor/CMakeLists.txt.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <initializer_list>

#include "common/tensor/kernels/kernels.h"

namespace rankprobe::kernels {
namespace {
#include "common/tensor/kernels/kernels.inc"
}  // namespace

extern const Table kBaselineTable = MakeTable("baseline");

}  // namespace rankprobe::kernels
