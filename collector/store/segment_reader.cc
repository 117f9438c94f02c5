#include "collector/store/segment_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

// docs/formats.md, "Segments".
constexpr size_t kHeaderBytes = 52;
constexpr absl::string_view kMagic = "RPS1";
constexpr uint64_t kWindowBytes = 1 << 20;

template <typename T>
T GetLittle(const char* in) {
  T value;
  std::memcpy(&value, in, sizeof(T));
  return value;
}

bool IsHeader(absl::string_view h) {
  return h.substr(0, 4) == kMagic &&
         GetLittle<uint32_t>(h.data() + 48) == Crc32c(h.substr(0, 48));
}

// The next header at or behind `from`; the end of the file if there is none.
absl::StatusOr<uint64_t> NextHeader(const RandomAccessFile& file, uint64_t from,
                                    uint64_t size) {
  std::string window;
  while (from + kHeaderBytes <= size) {
    window.resize(std::min<uint64_t>(kWindowBytes, size - from));
    RP_RETURN_IF_ERROR(file.Read(from, absl::MakeSpan(window)));
    for (size_t at = absl::string_view(window).find(kMagic);
         at != absl::string_view::npos && at + kHeaderBytes <= window.size();
         at = absl::string_view(window).find(kMagic, at + 1)) {
      if (IsHeader(absl::string_view(window).substr(at, kHeaderBytes)))
        return from + at;
    }
    if (from + window.size() == size) break;
    // A header may begin in one window and end in the next.
    from += window.size() - kHeaderBytes + 1;
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
  std::string header(kHeaderBytes, '\0'), data;
  for (uint64_t at = 0; at < size;) {
    bool sound = at + kHeaderBytes <= size;
    if (sound) {
      RP_RETURN_IF_ERROR(file->Read(at, absl::MakeSpan(header)));
      sound = IsHeader(header);
    }
    const uint64_t length =
        sound ? GetLittle<uint32_t>(header.data() + 4) : uint64_t{0};
    if (!sound || at + kHeaderBytes + length > size) {
      on_damage(at);
      RP_ASSIGN_OR_RETURN(at, NextHeader(*file, at + 1, size));
      continue;
    }
    data.resize(length);
    RP_RETURN_IF_ERROR(file->Read(at + kHeaderBytes, absl::MakeSpan(data)));
    SegmentFrame frame;
    frame.run = GetLittle<uint32_t>(header.data() + 8);
    frame.digest = header.substr(12, 16);
    frame.payload_length = GetLittle<uint64_t>(header.data() + 28);
    frame.offset = GetLittle<uint64_t>(header.data() + 36);
    frame.crc32c = GetLittle<uint32_t>(header.data() + 44);
    frame.data_offset = at + kHeaderBytes;
    frame.data = data;
    if (Crc32c(data) == frame.crc32c) {
      RP_RETURN_IF_ERROR(on_frame(frame));
    } else {
      on_damage(frame.data_offset);
    }
    at += kHeaderBytes + length;
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
