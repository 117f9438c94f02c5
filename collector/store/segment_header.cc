// SPDX-License-Identifier: Apache-2.0
#include "collector/store/segment_header.h"

#include <cstring>

#include "common/base/limits.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

constexpr size_t kChecksumAt = 48;

template <typename T>
void Put(T value, char* out) {
  std::memcpy(out, &value, sizeof(T));
}

template <typename T>
T Get(const char* in) {
  T value;
  std::memcpy(&value, in, sizeof(T));
  return value;
}

}  // namespace

SegmentHeader::Bytes SegmentHeader::Encode() const {
  Bytes bytes;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  Put(stored_bytes, bytes.data() + 4);
  Put(run, bytes.data() + 8);
  std::memcpy(bytes.data() + 12, digest.data(), kPayloadDigestBytes);
  Put(payload_length, bytes.data() + 28);
  Put(offset, bytes.data() + 36);
  Put(crc32c, bytes.data() + 44);
  Put(Crc32c({bytes.data(), kChecksumAt}), bytes.data() + kChecksumAt);
  return bytes;
}

std::optional<SegmentHeader> SegmentHeader::Decode(absl::string_view bytes) {
  const char* const in = bytes.data();
  if (bytes.substr(0, kMagic.size()) != kMagic ||
      Get<uint32_t>(in + kChecksumAt) != Crc32c(bytes.substr(0, kChecksumAt))) {
    return std::nullopt;
  }
  SegmentHeader header;
  header.stored_bytes = Get<uint32_t>(in + 4);
  header.run = Get<uint32_t>(in + 8);
  header.digest = bytes.substr(12, kPayloadDigestBytes);
  header.payload_length = Get<uint64_t>(in + 28);
  header.offset = Get<uint64_t>(in + 36);
  header.crc32c = Get<uint32_t>(in + 44);
  return header;
}

}  // namespace rankprobe
