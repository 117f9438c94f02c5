// SPDX-License-Identifier: Apache-2.0
#include "common/io/checksum_field.h"

#include <cstring>

#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

// Tag of field 100, of 4 bytes.
constexpr char kTag[] = {'\xa5', '\x06'};

}  // namespace

std::string ChecksumField(uint32_t crc32c) {
  std::string field(kTag, sizeof(kTag));
  // Little-endian, as are all supported hosts.
  field.append(reinterpret_cast<const char*>(&crc32c), sizeof(crc32c));
  return field;
}

std::optional<uint32_t> ParseChecksumField(absl::string_view field) {
  if (field.size() != kChecksumFieldBytes ||
      std::memcmp(field.data(), kTag, sizeof(kTag)) != 0)
    return std::nullopt;
  uint32_t crc32c = 0;
  std::memcpy(&crc32c, field.data() + sizeof(kTag), sizeof(crc32c));
  return crc32c;
}

void AppendChecksum(std::string* encoded) {
  *encoded += ChecksumField(Crc32c(*encoded));
}

bool MatchesChecksum(absl::string_view encoded) {
  if (encoded.size() < kChecksumFieldBytes) return false;
  const absl::string_view field =
      encoded.substr(encoded.size() - kChecksumFieldBytes);
  encoded.remove_suffix(kChecksumFieldBytes);
  return ParseChecksumField(field) == Crc32c(encoded);
}

}  // namespace rankprobe
