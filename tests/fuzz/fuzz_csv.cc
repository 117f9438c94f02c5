// SPDX-License-Identifier: Apache-2.0
// A csv file from anywhere: rows within the limits, or one line that names the
// file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "tests/fuzz/memory_files.h"
#include "web/jobs/csv_reader.h"

namespace rankprobe {
namespace {

void Run(absl::string_view data) {
  analysis::MemoryFiles files;
  files.Set("x.csv", std::string(data));
  CsvLimits limits;
  limits.rows = 1000;
  limits.row_bytes = 4096;
  const absl::Status read =
      ReadCsv(&files, "x.csv", limits,
              [&](uint64_t row, absl::Span<const absl::string_view> cells) {
                size_t bytes = 0;
                for (const absl::string_view cell : cells) {
                  // Reads the text, so that a view of freed memory is found.
                  for (const char c : cell)
                    bytes += c == 0 ? limits.row_bytes : 1;
                }
                if (row >= limits.rows || cells.size() > limits.columns ||
                    bytes > limits.row_bytes)
                  std::abort();
                return absl::OkStatus();
              });
  if (!read.ok() && (!absl::StartsWith(read.message(), "x.csv: ") ||
                     absl::StrContains(read.message(), "\n")))
    std::abort();
}

}  // namespace
}  // namespace rankprobe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
