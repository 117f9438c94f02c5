// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the offsets that a rank sends of the memory that it has shared.
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "collector/ingest/decoded_size.h"
#include "collector/ingest/frame_decoding.h"
#include "collector/ingest/frame_validator.h"
#include "collector/ingest/lane_payload.h"
#include "collector/store/store.h"
#include "common/base/limits.h"
#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"
#include "common/io/shared_memory.h"
#include "common/testing/fault_file_system.h"
#include "tests/fuzz/pieces.h"
#include "tests/fuzz/targets.h"

namespace rankprobe::fuzz {
namespace {

constexpr uint64_t kLaneBytes = 2 << 20;

void RequireOfLane(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: broken: %s\n", what);
  std::abort();
}

std::string LaneDigest(absl::string_view data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  return {reinterpret_cast<const char*>(canonical.digest), 16};
}

// A session's memory, and the collector's way from a frame on the wire to its
// store.
class LanePlay {
 public:
  LanePlay() {
    auto memory = SharedMemory::Create(kLaneBytes);
    RequireOfLane(memory.ok(), "shared memory is made");
    memory_ = *std::move(memory);
    auto reader = SharedMemoryReader::Adopt(::dup(memory_->fd()), kLaneBytes);
    RequireOfLane(reader.ok(), "shared memory is taken");
    reader_ = *std::move(reader);
    StoreOptions options;
    options.data_dir = "/d";
    options.min_free_bytes = 0;
    options.segment_bytes = 4 << 20;
    options.leveldb_write_buffer_bytes = 64 << 10;
    options.leveldb_cache_bytes = 64 << 10;
    options.max_payload_bytes = 4 << 20;
    auto store = Store::Open(options, &fs_, &clock_);
    RequireOfLane(store.ok(), "a store opens");
    store_ = *std::move(store);
    identity_.set_run("run");
    identity_.set_rank(1);
    identity_.set_incarnation(1);
  }

  void Piece(uint8_t kind, const std::string& bytes) {
    switch (kind % 4) {
      case 0:
        return Receive(bytes, /*handed_over=*/true);
      case 1:
        return Write(bytes);
      case 2:
        return Refer(bytes, kind);
      default:
        return Receive(bytes, /*handed_over=*/false);
    }
  }

  // What can be had in the end is what it is called.
  void CheckAll() {
    for (const auto& [digest, length] : lengths_) {
      if (!store_->HasPayload("run", digest, length)) continue;
      std::string out;
      const absl::Status status = store_->ReadPayload(
          "run", digest, length, [&](absl::string_view piece) {
            out.append(piece.data(), piece.size());
            return absl::OkStatus();
          });
      RequireOfLane(
          status.ok() && out.size() == length && LaneDigest(out) == digest,
          "what is whole has its digest");
    }
  }

 private:
  static uint64_t Number(absl::string_view bytes, size_t at, uint64_t below) {
    uint64_t value = 0;
    for (size_t i = at; i < std::min(at + 3, bytes.size()); ++i)
      value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value % below;
  }

  void Write(const std::string& bytes) {
    if (bytes.size() < 4) return;
    const uint64_t place = Number(bytes, 0, kLaneBytes);
    const uint64_t size = std::min(bytes.size() - 3, kLaneBytes - place);
    std::memcpy(memory_->data() + place, bytes.data() + 3, size);
  }

  // A chunk as an agent makes it; now and then of what is there no more.
  void Refer(const std::string& bytes, uint8_t kind) {
    const uint64_t place = Number(bytes, 0, kLaneBytes);
    const uint64_t length = 1 + Number(bytes, 3, kLaneBytes - place);
    const uint64_t offset = kind % 8 < 4 ? 0 : Number(bytes, 6, length);
    const uint64_t size = std::min(length - offset, kChunkBytes);
    v1::UploadFrame frame;
    frame.set_sequence(next_);
    v1::PayloadChunk& chunk = *frame.mutable_chunk();
    chunk.set_digest(LaneDigest({memory_->data() + place, length}));
    chunk.set_length_bytes(length);
    chunk.set_offset_bytes(offset);
    chunk.mutable_lane()->set_offset_bytes(place + offset);
    chunk.mutable_lane()->set_length_bytes(size);
    if (kind >= 128) memory_->data()[place + offset + size / 2] ^= 1;
    Receive(frame.SerializeAsString(), /*handed_over=*/true);
  }

  void Receive(const std::string& bytes, bool handed_over) {
    // As a hostile agent sends them.
    std::string checked = bytes;
    AppendChecksum(&checked);
    const grpc::Slice slice(checked);
    grpc::ByteBuffer buffer(&slice, 1);
    v1::UploadFrame frame;
    bool data_checked = false;
    if (!DecodeFrame(&buffer, &frame, &data_checked).ok() ||
        !CheckPlace(frame, next_).ok() || frame.sequence() != next_)
      return;
    const bool on_lane = IsOnLane(frame);
    uint64_t encoded = bytes.size();
    if (on_lane) {
      const v1::LaneReference said = frame.chunk().lane();
      const absl::Status taken =
          TakeFromLane(handed_over ? reader_.get() : nullptr, &frame);
      const std::string& data = frame.chunk().data();
      RequireOfLane(taken.ok() || absl::IsInvalidArgument(taken),
                    "a bad reference is the frame's fault alone");
      if (!taken.ok()) return;
      RequireOfLane(handed_over, "memory that nobody handed over is not read");
      RequireOfLane(
          !IsOnLane(frame) && data.size() == said.length_bytes() &&
              data.size() <= kChunkBytes &&
              std::memcmp(data.data(), memory_->data() + said.offset_bytes(),
                          data.size()) == 0 &&
              frame.chunk().crc32c() == Crc32c(data),
          "a reference becomes its bytes");
      encoded += data.size();
    }
    if (!CheckContent(frame, SizeOf(frame, encoded), on_lane).ok()) return;
    FrameToStore stored;
    stored.identity = &identity_;
    stored.frame = &frame;
    stored.bytes = encoded;
    stored.chunk_verified = true;
    const absl::Status committed = store_->Commit({stored});
    // A longer payload than this store takes.
    if (absl::IsInvalidArgument(committed)) return;
    RequireOfLane(committed.ok(), "what was let in can be committed");
    ++next_;
    if (frame.has_chunk())
      lengths_[frame.chunk().digest()] = frame.chunk().length_bytes();
  }

  testing::FaultFileSystem fs_;
  const ManualClock clock_;
  v1::Identity identity_;
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<SharedMemoryReader> reader_;
  std::unique_ptr<Store> store_;
  uint64_t next_ = 1;
  std::map<std::string, uint64_t> lengths_;
};

}  // namespace

void LaneReference(absl::string_view data) {
  LanePlay play;
  ForEachPiece(reinterpret_cast<const uint8_t*>(data.data()), data.size(),
               [&play](uint8_t kind, const std::string& bytes) {
                 play.Piece(kind, bytes);
               });
  play.CheckAll();
}

}  // namespace rankprobe::fuzz
