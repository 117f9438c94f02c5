// SPDX-License-Identifier: Apache-2.0
#include "collector/store/segment_reader.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "collector/store/segment_header.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

constexpr uint64_t kWindowBytes = 1 << 20;

// Returns the offset of the next header at or after `from`; the end of the file
// if there is none.
absl::StatusOr<uint64_t> NextHeader(const RandomAccessFile& file, uint64_t from,
                                    uint64_t size) {
  std::string window;
  while (from + SegmentHeader::kBytes <= size) {
    window.resize(std::min<uint64_t>(kWindowBytes, size - from));
    RP_RETURN_IF_ERROR(file.Read(from, absl::MakeSpan(window)));
    for (size_t at = absl::string_view(window).find(SegmentHeader::kMagic);
         at != absl::string_view::npos &&
         at + SegmentHeader::kBytes <= window.size();
         at = absl::string_view(window).find(SegmentHeader::kMagic, at + 1)) {
      if (SegmentHeader::Decode(
              absl::string_view(window).substr(at, SegmentHeader::kBytes))
              .has_value())
        return from + at;
    }
    if (from + window.size() == size) break;
    // Windows overlap, because a header may begin in one and end in the next.
    from += window.size() - SegmentHeader::kBytes + 1;
  }
  return size;
}

}  // namespace

absl::Status ReadSegment(
    FileSystem* file_system, const std::string& path, uint64_t size,
    const std::function<absl::Status(const SegmentFrame&)>& on_frame,
    const std::function<void(uint64_t offset)>& on_damage) {
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  std::string data;
  SegmentHeader::Bytes bytes;
  for (uint64_t at = 0; at < size;) {
    std::optional<SegmentHeader> header;
    if (at + SegmentHeader::kBytes <= size) {
      RP_RETURN_IF_ERROR(file->Read(at, absl::MakeSpan(bytes)));
      header = SegmentHeader::Decode({bytes.data(), bytes.size()});
    }
    if (!header.has_value() ||
        at + SegmentHeader::kBytes + header->stored_bytes > size) {
      on_damage(at);
      RP_ASSIGN_OR_RETURN(at, NextHeader(*file, at + 1, size));
      continue;
    }
    data.resize(header->stored_bytes);
    RP_RETURN_IF_ERROR(
        file->Read(at + SegmentHeader::kBytes, absl::MakeSpan(data)));
    SegmentFrame frame;
    frame.header = *header;
    frame.data_offset = at + SegmentHeader::kBytes;
    frame.data = data;
    if (Crc32c(data) == frame.header.crc32c) {
      RP_RETURN_IF_ERROR(on_frame(frame));
    } else {
      on_damage(frame.data_offset);
    }
    at += SegmentHeader::kBytes + header->stored_bytes;
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
