# SPDX-License-Identifier: Apache-2.0
# -D FROM=FILE.ptx -D TO=FILE.cc: the text as a constant (statistics_kernel_ptx.h).
file(READ ${FROM} _text)
file(WRITE ${TO} "// Made by embed_ptx.cmake.
#include \"agent/runtime/device/statistics_kernel_ptx.h\"

namespace rankprobe {
const char kStatisticsKernelPtx[] = R\"PTX(${_text})PTX\";
}  // namespace rankprobe
")
