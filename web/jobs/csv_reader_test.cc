// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/csv_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/testing/scratch_directory.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

// Returns the cells after the number of their row, one row on each line; or the
// error, whose file is F.
std::string Read(const std::string& text, const CsvLimits& limits = {}) {
  const testing::ScratchDirectory scratch;
  const std::string path = scratch.path() + "/t.csv";
  std::ofstream(path) << text;
  std::string out;
  const absl::Status status = ReadCsv(
      NewPosixFileSystem().get(), path, limits,
      [&out](uint64_t row, absl::Span<const absl::string_view> cells) {
        absl::StrAppend(&out, row, ": ", absl::StrJoin(cells, "|"), "\n");
        return absl::OkStatus();
      });
  return status.ok() ? out
                     : absl::StrReplaceAll(status.message(), {{path, "F"}});
}

TEST(CsvReaderTest, CellsAndRows) {
  EXPECT_EQ(Read("\xEF\xBB\xBFName,x\r\n\"a,\"\"b\nc\",1.50\n,nan\ninf,-2e3"),
            "0: Name|x\n1: a,\"b\nc|1.50\n2: |nan\n3: inf|-2e3\n");
  EXPECT_EQ(Read(""), "");
  EXPECT_EQ(Read("a\n"), "0: a\n");
  EXPECT_EQ(Read("a,"), "0: a|\n");
  // A piece of the file may end at any byte.
  EXPECT_THAT(Read(std::string((256 << 10) - 1, 'a') + "\"\n\"\"\"\"\n"),
              HasSubstr("a\"\n1: \"\n"));
}

TEST(CsvReaderTest, ErrorsNameFileAndRow) {
  EXPECT_EQ(Read("a\n\"b"), "F: row 2: a quotation mark has no partner");
  EXPECT_EQ(Read(std::string("a\0b", 3)), "F: row 1: a NUL byte");
  EXPECT_EQ(Read("a\n\xff\n"), "F: row 2: text that is not UTF-8");
  CsvLimits limits;
  limits.rows = 2;
  EXPECT_EQ(Read("1\n2\n3\n", limits), "F: more than 2 rows");
  EXPECT_THAT(Read(std::string(300, ',')), HasSubstr("more than 256 columns"));
  limits.row_bytes = 10;
  EXPECT_EQ(Read("12345678901", limits), "F: row 1: more than 10 bytes");
}

}  // namespace
}  // namespace rankprobe
