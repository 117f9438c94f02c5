// SPDX-License-Identifier: Apache-2.0
// Limits of what a record and a frame may hold. Agents cut values to these
// limits and mark them with a CutValue in the record; the collector refuses
// frames beyond them.
#ifndef RANKPROBE_COMMON_BASE_LIMITS_H_
#define RANKPROBE_COMMON_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace rankprobe {

// An encoded UploadFrame.
inline constexpr uint64_t kMaxFrameBytes = 1 << 20;
// Room in a frame for everything but the payload's or records' own bytes.
inline constexpr uint64_t kFrameOverhead = 256;
inline constexpr uint64_t kChunkBytes = kMaxFrameBytes - kFrameOverhead;
// One encoded record: with its step and tags it fits a frame.
inline constexpr uint64_t kMaxRecordBytes = kChunkBytes - 32;

// Protobuf takes 100 messages inside each other. Six lead from a frame to an
// argument (batch, record, call, kwargs, its item, the value) and three may
// stand in a leaf (P2POp, tensor, statistics). A list costs two, its own and
// its item's value, a dict three: 45 lists, or 30 dicts, inside each other.
inline constexpr int kMaxValueMessages = 90;
inline constexpr int kListMessages = 2;
inline constexpr int kMapMessages = 3;

// What names a payload: its XXH3-128.
inline constexpr size_t kPayloadDigestBytes = 16;

// Of one call's inputs or outputs: values in all, nested ones too, and tensors.
inline constexpr uint64_t kMaxCallValues = 65'536;
inline constexpr uint64_t kMaxCallTensors = 16'384;
inline constexpr size_t kMaxTextBytes = 64 << 10;
// Of an integer beyond 64 bits.
inline constexpr uint64_t kMaxIntegerDigits = 4096;
// An entry's name, and a key of a dict.
inline constexpr size_t kMaxNameBytes = 4096;
// A name that is kept beside a value: a class, a device.
inline constexpr size_t kMaxTypeBytes = 256;
inline constexpr size_t kMaxMeshBytes = 64 << 10;
inline constexpr int kMaxDimensions = 64;
inline constexpr int kMaxStackFrames = 4096;
// Of a tensor, beside Max, Min, Mean and Norm.
inline constexpr int kMaxExtraStatistics = 32;
// Of a server's step that are named, and of the name of one.
inline constexpr int kMaxStepRequests = 1024;
inline constexpr size_t kMaxRequestIdBytes = 256;
// Of one record of a run card, and of a fact's texts.
inline constexpr int kMaxRunFacts = 1024;
inline constexpr size_t kMaxFactSectionBytes = 64;
inline constexpr size_t kMaxFactNameBytes = 1024;
inline constexpr size_t kMaxFactValueBytes = 4096;

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_LIMITS_H_
