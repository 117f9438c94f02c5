// SPDX-License-Identifier: Apache-2.0
// A compare table from anywhere: rows, or one line that names the file. The
// first byte says what the others are: a csv file, a workbook, or the XML of a
// sheet or of the shared texts in a workbook that is whole otherwise (nothing
// that is made up has the CRC that a zip file says).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "analysis/table_reader/table_reader.h"
#include "analysis/testing/zip_text.h"
#include "tests/fuzz/memory_files.h"

namespace rankprobe::analysis {
namespace {

std::string Stored(std::vector<testing::ZipPart> parts) {
  for (testing::ZipPart& part : parts) part.deflated = false;
  return testing::ZipText(parts);
}

void Run(absl::string_view data) {
  if (data.empty()) return;
  const char kind = data[0];
  const std::string rest(data.substr(1));
  const std::string path = kind == 'c' ? "x.csv" : "x.xlsx";
  MemoryFiles files;
  files.Set(path,
            kind == 's' ? Stored(testing::Workbook({rest}, "<si><t>a</t></si>"))
            : kind == 't' ? Stored(testing::Workbook(
                                {"<row><c t=\"s\"><v>1</v></c></row>"}, rest))
                          : rest);
  TableLimits limits;
  limits.rows = 1000;
  limits.row_bytes = 4096;
  limits.sheet_bytes = 1 << 20;
  limits.shared_bytes = 1 << 20;
  uint64_t rows = 0;
  const absl::Status read = ReadTable(
      &files, path, limits,
      [&](size_t sheet, uint64_t row, absl::Span<const TableCell> cells) {
        size_t bytes = 0;
        for (const TableCell& cell : cells) {
          // Touches the text: a view of nothing would show.
          for (const char c : cell.text) bytes += c == 0 ? 2 : 1;
        }
        ++rows;
        if (row >= limits.rows || sheet >= limits.sheets ||
            cells.size() > limits.columns) {
          std::abort();
        }
        return bytes == SIZE_MAX ? absl::CancelledError("") : absl::OkStatus();
      });
  if (rows > limits.rows * limits.sheets) std::abort();
  if (!read.ok() && (!absl::StartsWith(read.message(), path) ||
                     absl::StrContains(read.message(), "\n"))) {
    std::abort();
  }
}

}  // namespace
}  // namespace rankprobe::analysis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::analysis::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
