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

// The encoded field.
std::string ChecksumField(uint32_t crc32c);
// The checksum in the field; nullopt if these kChecksumFieldBytes are not such
// a field.
std::optional<uint32_t> ParseChecksumField(absl::string_view field);

// Appends the checksum to an encoded message without one.
void AppendChecksum(std::string* encoded);
// Whether a message ends with the checksum of the bytes before it.
bool MatchesChecksum(absl::string_view encoded);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_CHECKSUM_FIELD_H_
