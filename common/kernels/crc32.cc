#include "common/kernels/crc32.h"

#include <libdeflate.h>

namespace rankprobe::kernels {

uint32_t Crc32(uint32_t crc, const void* data, size_t bytes) {
  static const bool wide = HasWideCrc32();
  return wide ? WideCrc32(crc, data, bytes)
              : libdeflate_crc32(crc, data, bytes);
}

}  // namespace rankprobe::kernels
