// SPDX-License-Identifier: Apache-2.0
// Members of a zip file, out of its central directory: stored or deflated, no
// zip64, nothing encrypted. The file is not trusted: all sizes are bounded, and
// a member that is not what the directory says of it (length, CRC) is an error.
// Immutable, thread-safe as its file is. Failure: INVALID_ARGUMENT without the
// path, which the caller knows.
#ifndef RANKPROBE_ANALYSIS_TABLE_READER_ZIP_FILE_H_
#define RANKPROBE_ANALYSIS_TABLE_READER_ZIP_FILE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

// Gets the bytes of a member in order; a status that is not OK ends the reading.
using PieceFn = std::function<absl::Status(absl::string_view)>;

class ZipFile {
 public:
  // `file` outlives the object.
  static absl::StatusOr<ZipFile> Open(const RandomAccessFile* file,
                                      uint64_t file_size);

  std::vector<std::string> Names() const;
  bool Has(const std::string& name) const { return members_.contains(name); }
  // Pieces of at most 64 KiB; never more than `max_bytes` in all.
  absl::Status Read(const std::string& name, uint64_t max_bytes,
                    const PieceFn& piece) const;

 private:
  struct Member {
    uint64_t header_offset = 0;
    uint64_t stored_size = 0;
    uint64_t size = 0;
    uint32_t crc = 0;
    uint16_t method = 0;
    bool encrypted = false;
  };

  absl::Status ReadDirectory(absl::string_view directory, uint64_t count);
  absl::StatusOr<uint64_t> DataOffset(const Member& member) const;
  absl::Status Inflate(const Member& member, uint64_t offset,
                       const PieceFn& piece) const;
  absl::Status Copy(const Member& member, uint64_t offset,
                    const PieceFn& piece) const;

  const RandomAccessFile* file_ = nullptr;
  uint64_t file_size_ = 0;
  std::map<std::string, Member> members_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_TABLE_READER_ZIP_FILE_H_
