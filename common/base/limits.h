// SPDX-License-Identifier: Apache-2.0
// Limits of what a record and a frame may hold. Agents cut values to these
// limits and mark them with a CutValue in the record; the collector refuses
// frames beyond them.
#ifndef RANKPROBE_COMMON_BASE_LIMITS_H_
#define RANKPROBE_COMMON_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace rankprobe {

// Size of an encoded UploadFrame.
inline constexpr uint64_t kMaxFrameBytes = 1 << 20;
// Space in a frame for everything except the bytes of the payload or records.
inline constexpr uint64_t kFrameOverhead = 256;
inline constexpr uint64_t kChunkBytes = kMaxFrameBytes - kFrameOverhead;
// Size of one encoded record: with its step and tags it fits a frame.
inline constexpr uint64_t kMaxRecordBytes = kChunkBytes - 32;

// Protobuf accepts 100 nested messages. Six lead from a frame to an argument
// (batch, record, call, kwargs, its item, the value), and a leaf may contain
// three (P2POp, tensor, statistics). A list costs two, its own and its item's
// value, a dict three: this allows 45 nested lists, or 30 dicts.
inline constexpr int kMaxValueMessages = 90;
inline constexpr int kListMessages = 2;
inline constexpr int kMapMessages = 3;

// Size of the digest that identifies a payload: XXH3-128.
inline constexpr size_t kPayloadDigestBytes = 16;

// For the inputs or outputs of one call: values including nested ones, and
// tensors.
inline constexpr uint64_t kMaxCallValues = 65'536;
inline constexpr uint64_t kMaxCallTensors = 16'384;
inline constexpr size_t kMaxTextBytes = 64 << 10;
// For an integer beyond 64 bits.
inline constexpr uint64_t kMaxIntegerDigits = 4096;
// For the name of an entry, and a key of a dict.
inline constexpr size_t kMaxNameBytes = 4096;
// For a name that is stored with a value: a class, a device.
inline constexpr size_t kMaxTypeBytes = 256;
inline constexpr size_t kMaxMeshBytes = 64 << 10;
inline constexpr int kMaxDimensions = 64;
inline constexpr int kMaxStackFrames = 4096;
// For a tensor, in addition to Max, Min, Mean and Norm.
inline constexpr int kMaxExtraStatistics = 32;
// For the requests of a server's step that are named, and the name of each.
inline constexpr int kMaxStepRequests = 1024;
inline constexpr size_t kMaxRequestIdBytes = 256;
// For one record of a run card, and the texts of a fact.
inline constexpr int kMaxRunFacts = 1024;
inline constexpr size_t kMaxFactSectionBytes = 64;
inline constexpr size_t kMaxFactNameBytes = 1024;
inline constexpr size_t kMaxFactValueBytes = 4096;

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_LIMITS_H_
