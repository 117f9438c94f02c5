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

// An UploadFrame in three pieces: `head`, then `tail`, which is not copied,
// then `foot`, the checksum of both.
struct EncodedFrame {
  uint64_t sequence = 0;
  std::string head;
  absl::string_view tail;
  std::string foot;
  // Owns the tail's memory; may outlive the queue.
  std::shared_ptr<const void> tail_owner;
  // The next NextFrame returns a frame, too, if nothing else happens.
  bool followed = false;
};

// A RecordBatch and its checksum, computed when it is encoded, so that damage
// while it waits is detected on arrival.
struct EncodedBatch {
  EncodedBatch() = default;
  explicit EncodedBatch(std::string encoded);
  std::string bytes;
  uint32_t crc32c = 0;
};

// Encodes the records of one step as RecordBatches of at most a frame each;
// each record has its own checksum. Records beyond the limits are cut or left
// out; `losses` lists what was lost.
std::vector<EncodedBatch> EncodeRecords(
    int64_t step, const std::vector<std::unique_ptr<RecordBuffer>>& buffers,
    std::vector<v1::LossEvent>* losses);

// Counts of an encoded RecordBatch; also of one that can be parsed only in
// part.
struct BatchContent {
  int64_t step = 0;
  // Without LossEvents, which report other losses.
  uint64_t records = 0;
  // References to payloads in the records.
  uint64_t payloads = 0;
  // What the LossEvents report.
  uint64_t lost_records = 0, lost_payloads = 0;
};
// Adds one record of a batch.
void CountRecord(const v1::Record& record, BatchContent* content);
BatchContent CountBatch(absl::string_view batch);

// Encodes a frame that has only a sequence number.
void EncodeEmpty(uint64_t sequence, EncodedFrame* out);
// Encodes the replacement of a frame that was given up.
void EncodeUndeliverable(uint64_t sequence, const v1::UndeliverableFrame& what,
                         EncodedFrame* out);
void EncodeBatch(uint64_t sequence, std::shared_ptr<const EncodedBatch> batch,
                 EncodedFrame* out);
// Bytes of a payload from `offset`. The encoder computes their checksum.
struct ChunkToEncode {
  const std::array<uint8_t, 16>* digest;
  uint64_t payload_bytes = 0;
  uint64_t offset = 0;
  absl::string_view data;
  // Offset of `data` in shared memory, if the collector is to read it there:
  // the frame then has this offset instead of the bytes and their checksum.
  std::optional<uint64_t> place;
};
void EncodeChunk(uint64_t sequence, const ChunkToEncode& chunk,
                 std::shared_ptr<const void> owner, EncodedFrame* out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_ENCODING_H_
