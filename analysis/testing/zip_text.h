// SPDX-License-Identifier: Apache-2.0
// Zip files as text, for tests: valid files, and files that no program writes.
// Pure functions.
#ifndef RANKPROBE_ANALYSIS_TESTING_ZIP_TEXT_H_
#define RANKPROBE_ANALYSIS_TESTING_ZIP_TEXT_H_

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis::testing {

struct ZipPart {
  std::string name;
  std::string content;
  bool deflated = true;
  // Size in the directory, if it differs from the real one.
  int64_t size = -1;
  uint16_t flags = 0;
  int method = -1;
};

inline std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i, value >>= 8) {
    out.push_back(static_cast<char>(value & 0xFF));
  }
  return out;
}

inline std::string Deflated(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string ZipText(const std::vector<ZipPart>& parts) {
  std::string out;
  std::string directory;
  for (const ZipPart& part : parts) {
    const std::string data =
        part.deflated ? Deflated(part.content) : part.content;
    const uint64_t size =
        part.size >= 0 ? static_cast<uint64_t>(part.size) : part.content.size();
    const int method = part.method >= 0 ? part.method : part.deflated ? 8 : 0;
    const uLong crc =
        crc32(0, reinterpret_cast<const Bytef*>(part.content.data()),
              static_cast<uInt>(part.content.size()));
    const std::string common =
        absl::StrCat(Little(20, 2), Little(part.flags, 2),
                     Little(static_cast<uint64_t>(method), 2), Little(0, 4),
                     Little(crc, 4), Little(data.size(), 4), Little(size, 4),
                     Little(part.name.size(), 2), Little(0, 2));
    absl::StrAppend(&directory, "PK\1\2", Little(20, 2), common, Little(0, 10),
                    Little(out.size(), 4), part.name);
    absl::StrAppend(&out, "PK\3\4", common, part.name, data);
  }
  const uint64_t begin = out.size();
  absl::StrAppend(&out, directory, "PK\5\6", Little(0, 4),
                  Little(parts.size(), 2), Little(parts.size(), 2),
                  Little(directory.size(), 4), Little(begin, 4), Little(0, 2));
  return out;
}

}  // namespace rankprobe::analysis::testing

#endif  // RANKPROBE_ANALYSIS_TESTING_ZIP_TEXT_H_
