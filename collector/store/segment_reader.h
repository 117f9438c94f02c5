// SPDX-License-Identifier: Apache-2.0
// Sequential reading of a segment file, past damaged places.
// Threads: pure functions over a FileSystem.
#ifndef RANKPROBE_COLLECTOR_STORE_SEGMENT_READER_H_
#define RANKPROBE_COLLECTOR_STORE_SEGMENT_READER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collector/store/segment_header.h"
#include "common/io/file_system.h"

namespace rankprobe {

// The frame of one chunk as it lies in a segment; valid during the call.
struct SegmentFrame {
  SegmentHeader header;
  // Offset of the data in the file, which may be a zstd frame of the chunk.
  uint64_t data_offset = 0;
  absl::string_view data;
};

// `on_damage` is called with the first byte of data that is not a frame;
// reading continues at the next valid frame.
absl::Status ReadSegment(
    FileSystem* file_system, const std::string& path, uint64_t size,
    const std::function<absl::Status(const SegmentFrame&)>& on_frame,
    const std::function<void(uint64_t offset)>& on_damage);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SEGMENT_READER_H_
