// SPDX-License-Identifier: Apache-2.0
// Zip files and workbooks as text, for tests: whole ones, and such as nobody
// writes. Pure functions.
#ifndef RANKPROBE_ANALYSIS_TESTING_ZIP_TEXT_H_
#define RANKPROBE_ANALYSIS_TESTING_ZIP_TEXT_H_

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis::testing {

class TextFile : public RandomAccessFile {
 public:
  explicit TextFile(std::string text) : text_(std::move(text)) {}
  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    if (offset > text_.size() || out.size() > text_.size() - offset) {
      return absl::OutOfRangeError("beyond the end");
    }
    std::memcpy(out.data(), text_.data() + offset, out.size());
    return absl::OkStatus();
  }
  uint64_t size() const { return text_.size(); }

 private:
  const std::string text_;
};

struct ZipPart {
  std::string name;
  std::string content;
  bool deflated = true;
  // What the directory says, if not the truth.
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

// A workbook with these sheets (XML of their <sheetData>) and shared texts.
inline std::vector<ZipPart> Workbook(const std::vector<std::string>& sheets,
                                     const std::string& shared = "") {
  std::string list;
  std::string relations;
  std::vector<ZipPart> parts;
  for (size_t i = 0; i < sheets.size(); ++i) {
    absl::StrAppend(&list, "<sheet name=\"S", i, "\" sheetId=\"", i + 1,
                    "\" r:id=\"rId", i, "\"/>");
    absl::StrAppend(&relations, "<Relationship Id=\"rId", i,
                    "\" Type=\"http://x/worksheet\" Target=\"worksheets/s", i,
                    ".xml\"/>");
    parts.push_back({absl::StrCat("xl/worksheets/s", i, ".xml"),
                     absl::StrCat("<?xml version=\"1.0\"?><worksheet xmlns=\"x"
                                  "\"><sheetData>",
                                  sheets[i], "</sheetData></worksheet>")});
  }
  if (!shared.empty()) {
    absl::StrAppend(&relations,
                    "<Relationship Id=\"t\" Type=\"http://x/sharedStrings\" "
                    "Target=\"/xl/sharedStrings.xml\"/>");
    parts.push_back({"xl/sharedStrings.xml",
                     absl::StrCat("<sst xmlns=\"x\">", shared, "</sst>")});
  }
  parts.push_back(
      {"xl/workbook.xml", absl::StrCat("<workbook xmlns:r=\"r\"><sheets>", list,
                                       "</sheets></workbook>")});
  parts.push_back(
      {"xl/_rels/workbook.xml.rels",
       absl::StrCat("<Relationships>", relations, "</Relationships>")});
  return parts;
}

}  // namespace rankprobe::analysis::testing

#endif  // RANKPROBE_ANALYSIS_TESTING_ZIP_TEXT_H_
