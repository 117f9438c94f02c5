// SPDX-License-Identifier: Apache-2.0
#include "collector/store/chunk_packer.h"

#include <zstd.h>

namespace rankprobe {
namespace {

// Fast enough to keep up with a disk.
constexpr int kLevel = 1;
constexpr size_t kSampleBytes = 32 << 10;

bool Pays(size_t packed, size_t data) { return packed < data - data / 10; }

}  // namespace

void ChunkPacker::Free::operator()(ZSTD_CCtx_s* context) const {
  ZSTD_freeCCtx(context);
}

bool ChunkPacker::Pack(absl::string_view data, std::string* packed) {
  if (data.size() > 4 * kSampleBytes &&
      !PackAll(data.substr(data.size() / 2, kSampleBytes), packed))
    return false;
  return PackAll(data, packed);
}

bool ChunkPacker::PackAll(absl::string_view data, std::string* packed) {
  if (context_ == nullptr) context_.reset(ZSTD_createCCtx());
  if (context_ == nullptr) return false;
  packed->resize(ZSTD_compressBound(data.size()));
  const size_t size =
      ZSTD_compressCCtx(context_.get(), packed->data(), packed->size(),
                        data.data(), data.size(), kLevel);
  if (ZSTD_isError(size) != 0 || !Pays(size, data.size())) return false;
  packed->resize(size);
  return true;
}

std::optional<uint64_t> UnpackedBytes(absl::string_view data) {
  const uint64_t bytes = ZSTD_getFrameContentSize(data.data(), data.size());
  if (bytes == ZSTD_CONTENTSIZE_ERROR || bytes == ZSTD_CONTENTSIZE_UNKNOWN)
    return std::nullopt;
  return bytes;
}

bool Unpack(absl::string_view packed, uint64_t length_bytes,
            std::string* data) {
  // Comparing the size in the frame with the row is cheap, and happens before
  // memory is allocated.
  if (ZSTD_getFrameContentSize(packed.data(), packed.size()) != length_bytes)
    return false;
  data->resize(length_bytes);
  return ZSTD_decompress(data->data(), data->size(), packed.data(),
                         packed.size()) == length_bytes;
}

}  // namespace rankprobe
