// SPDX-License-Identifier: Apache-2.0
// The header before the data of each chunk of a segment: 52 bytes,
// little-endian as the hosts that we build for (docs/storage.md, "Segments").
// Plain values.
#ifndef RANKPROBE_COLLECTOR_STORE_SEGMENT_HEADER_H_
#define RANKPROBE_COLLECTOR_STORE_SEGMENT_HEADER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace rankprobe {

struct SegmentHeader {
  static constexpr size_t kBytes = 52;
  static constexpr absl::string_view kMagic = "RPS1";
  using Bytes = std::array<char, kBytes>;

  // `digest` has 16 bytes.
  Bytes Encode() const;
  // Returns nothing unless the magic and the header's own checksum are correct.
  // `bytes` has kBytes bytes.
  static std::optional<SegmentHeader> Decode(absl::string_view bytes);

  bool operator==(const SegmentHeader&) const = default;

  // Length of the data as stored, which may be a zstd frame of the chunk.
  uint32_t stored_bytes = 0;
  uint32_t run = 0;
  // In a decoded header: a view of the decoded bytes.
  absl::string_view digest;
  uint64_t payload_length = 0;
  // Offset of the chunk in its payload.
  uint64_t offset = 0;
  // CRC32C of the data as stored.
  uint32_t crc32c = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SEGMENT_HEADER_H_
