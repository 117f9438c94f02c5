// SPDX-License-Identifier: Apache-2.0
// The checksum that a message of protobuf carries with it: its field 100,
//   optional fixed32 crc32c = 100;
// which is its last one, so that it is the CRC32C of all bytes before it. A
// process that has the bytes can check them without parsing them. Thread-safe:
// pure functions.
#ifndef RANKPROBE_COMMON_IO_CHECKSUM_FIELD_H_
#define RANKPROBE_COMMON_IO_CHECKSUM_FIELD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

inline constexpr size_t kChecksumFieldBytes = 6;

// The field, encoded.
std::string ChecksumField(uint32_t crc32c);
// What the field says; nothing where these kChecksumFieldBytes are none.
std::optional<uint32_t> ParseChecksumField(absl::string_view field);

// Of an encoded message that has none yet.
void AppendChecksum(std::string* encoded);
// Whether a message ends with the checksum of what is before it.
bool MatchesChecksum(absl::string_view encoded);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_CHECKSUM_FIELD_H_
