// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli) of frames on the wire and on disk. Hardware instruction
// where there is one, a table elsewhere; same result. Thread-safe.
#ifndef RANKPROBE_COMMON_IO_CRC32C_H_
#define RANKPROBE_COMMON_IO_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace rankprobe {

// `crc` is the result for the bytes before `data`, 0 at the start.
uint32_t Crc32c(absl::string_view data, uint32_t crc = 0);

// The result for the concatenation of a and b, whose length is `bytes_b`, from
// the results for each of them. Reads no data.
uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);

// The version with a table, for tests.
uint32_t Crc32cPortable(absl::string_view data, uint32_t crc = 0);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_CRC32C_H_
