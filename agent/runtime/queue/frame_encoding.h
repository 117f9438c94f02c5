// SPDX-License-Identifier: Apache-2.0
// Encoder of UploadFrame that does not copy its contents into messages first.
// Thread-safe: pure functions.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_ENCODING_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_ENCODING_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/runtime/queue/buffers.h"
#include "common/base/limits.h"

namespace rankprobe {

// An UploadFrame: `head`, then `tail`, which is not copied, then `foot`, the
// checksum of both.
struct EncodedFrame {
  uint64_t sequence = 0;
  std::string head;
  absl::string_view tail;
  std::string foot;
  // Keeps the tail's memory; may outlive the queue.
  std::shared_ptr<const void> tail_owner;
  // The next NextFrame gives one, too, if nothing else happens.
  bool followed = false;
};

// A RecordBatch and its checksum, made with it: what happens to the bytes while
// they wait is found when they arrive.
struct EncodedBatch {
  EncodedBatch() = default;
  explicit EncodedBatch(std::string encoded);
  std::string bytes;
  uint32_t crc32c = 0;
};

// RecordBatches of one step, at most a frame each, and each record with its own
// checksum. Records beyond the limits are cut or left out; `losses` says what went
// with them.
std::vector<EncodedBatch> EncodeRecords(
    int64_t step, const std::vector<std::unique_ptr<RecordBuffer>>& buffers,
    std::vector<v1::LossEvent>* losses);

// What an encoded RecordBatch holds, also one that cannot be parsed whole.
struct BatchContent {
  int64_t step = 0;
  // Without LossEvents, which count others.
  uint64_t records = 0;
  // References in them.
  uint64_t payloads = 0;
};
BatchContent CountBatch(absl::string_view batch);

// A frame with nothing in it but its number.
void EncodeEmpty(uint64_t sequence, EncodedFrame* out);
// In the place of a frame that was given up.
void EncodeUndeliverable(uint64_t sequence, const v1::UndeliverableFrame& what,
                         EncodedFrame* out);
void EncodeBatch(uint64_t sequence, std::shared_ptr<const EncodedBatch> batch,
                 EncodedFrame* out);
// The bytes of a payload from `offset`, with their checksum, which it computes.
struct ChunkToEncode {
  const std::array<uint8_t, 16>* digest;
  uint64_t payload_bytes = 0;
  uint64_t offset = 0;
  absl::string_view data;
  // Where in shared memory `data` lies, if the collector is to read it there:
  // the frame then says so and has neither bytes nor checksum.
  std::optional<uint64_t> place;
};
void EncodeChunk(uint64_t sequence, const ChunkToEncode& chunk,
                 std::shared_ptr<const void> owner, EncodedFrame* out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_ENCODING_H_
