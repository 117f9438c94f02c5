// SPDX-License-Identifier: Apache-2.0
// zstd for payload chunks, where it pays.
#ifndef RANKPROBE_COLLECTOR_STORE_CHUNK_PACKER_H_
#define RANKPROBE_COLLECTOR_STORE_CHUNK_PACKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

struct ZSTD_CCtx_s;

namespace rankprobe {

// Not thread-safe.
class ChunkPacker {
 public:
  // Returns false if `data` would not become at least a tenth smaller. A sample
  // is compressed first, so that random bytes cost little.
  bool Pack(absl::string_view data, std::string* packed);

 private:
  bool PackAll(absl::string_view data, std::string* packed);
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
};

// Returns the size that a zstd frame declares; absent if `data` is not a zstd
// frame.
std::optional<uint64_t> UnpackedBytes(absl::string_view data);

// Returns false if `packed` does not hold exactly `length_bytes` bytes.
// Thread-safe.
bool Unpack(absl::string_view packed, uint64_t length_bytes, std::string* data);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_CHUNK_PACKER_H_
