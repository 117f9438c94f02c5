// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/csv_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "analysis/testing/zip_text.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using testing::TextFile;

// Cells with their kinds ("n 1.5", "t name", "-"), a row a line.
std::string Read(const std::string& text, const TableLimits& limits = {}) {
  const TextFile file(text);
  std::string out;
  const absl::Status status = ReadCsv(
      file, file.size(), limits,
      [&out](size_t, uint64_t row, absl::Span<const TableCell> cells) {
        std::vector<std::string> shown;
        for (const TableCell& cell : cells) {
          shown.push_back(cell.kind == TableCell::Kind::kEmpty ? "-"
                          : cell.kind == TableCell::Kind::kNumber
                              ? absl::StrCat("n ", cell.number)
                              : absl::StrCat("t ", cell.text));
        }
        absl::StrAppend(&out, row, ": ", absl::StrJoin(shown, "|"), "\n");
        return absl::OkStatus();
      });
  return status.ok() ? out : absl::StrCat("! ", status.message());
}

TEST(CsvReaderTest, CellsAndRows) {
  EXPECT_EQ(Read("\xEF\xBB\xBFName,x\r\n\"a,\"\"b\nc\",1.50\n,nan\ninf,-2e3"),
            "0: t Name|t x\n1: t a,\"b\nc|n 1.5\n2: -|t nan\n3: t inf|n "
            "-2000\n");
  EXPECT_EQ(Read(""), "");
  EXPECT_EQ(Read("a\n"), "0: t a\n");
  EXPECT_EQ(Read("a,"), "0: t a|-\n");
  // A piece ends anywhere.
  EXPECT_THAT(Read(std::string((256 << 10) - 1, 'a') + "\"\n\"\"\"\"\n"),
              HasSubstr("a\"\n1: t \"\n"));
}

TEST(CsvReaderTest, WhatIsNoTableIsSaid) {
  EXPECT_EQ(Read("a\n\"b"), "! row 2: a quotation mark has no partner");
  EXPECT_EQ(Read(std::string("a\0b", 3)), "! row 1: a NUL byte");
  EXPECT_EQ(Read("a\n\xff\n"), "! row 2: text that is not UTF-8");
  TableLimits limits;
  limits.rows = 2;
  EXPECT_EQ(Read("1\n2\n3\n", limits), "! more than 2 rows");
  EXPECT_THAT(Read(std::string(300, ',')), HasSubstr("more than 256 columns"));
  limits.row_bytes = 10;
  EXPECT_EQ(Read("12345678901", limits), "! row 1: more than 10 bytes");
}

}  // namespace
}  // namespace rankprobe::analysis
