// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/lane_payload.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {

namespace {

constexpr uint64_t kPieceBytes = 64 << 10;

}  // namespace

absl::Status TakeFromLane(const SharedMemoryReader* memory,
                          v1::UploadFrame* untrusted) {
  v1::PayloadChunk& chunk = *untrusted->mutable_chunk();
  const v1::LaneReference lane = chunk.lane();
  chunk.clear_lane();
  if (memory == nullptr) {
    return absl::InvalidArgumentError(
        "a chunk refers to shared memory, and the session has not shared any");
  }
  if (!chunk.data().empty() || chunk.crc32c() != 0) {
    return absl::InvalidArgumentError(
        "a chunk has bytes or a checksum of its own beside those in shared "
        "memory");
  }
  // Checked before anything is allocated.
  if (lane.length_bytes() == 0 || lane.length_bytes() > kChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk has ", lane.length_bytes(), " bytes in shared memory; 1 to ",
        kChunkBytes, " are legal"));
  }
  if (lane.offset_bytes() > memory->size() ||
      lane.length_bytes() > memory->size() - lane.offset_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of ", lane.length_bytes(), " bytes lies at ",
        lane.offset_bytes(), ", beyond the end of shared memory of ",
        memory->size(), " bytes"));
  }
  std::string data(lane.length_bytes(), '\0');
  uint32_t crc = 0;
  // In pieces, so that each is still in the cache when its checksum is
  // computed.
  for (uint64_t at = 0; at < data.size(); at += kPieceBytes) {
    const absl::Span<char> piece =
        absl::MakeSpan(data).subspan(at, kPieceBytes);
    RP_RETURN_IF_ERROR(memory->Read(lane.offset_bytes() + at, piece));
    crc = Crc32c({piece.data(), piece.size()}, crc);
  }
  chunk.set_crc32c(crc);
  chunk.set_data(std::move(data));
  return absl::OkStatus();
}

}  // namespace rankprobe
