// SPDX-License-Identifier: Apache-2.0
// What pandas 3.1 makes of the same columns (read_excel, keep_default_na=False).
#include "analysis/merge_result/column_values.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rankprobe::analysis {
namespace {

TableCell Number(double value, absl::string_view text = "") {
  return {TableCell::Kind::kNumber, value, text};
}
TableCell Text(absl::string_view text) {
  return {TableCell::Kind::kText, 0, text};
}
TableCell Truth(bool value) {
  return {TableCell::Kind::kBool, value ? 1.0 : 0.0, ""};
}
const TableCell kError{TableCell::Kind::kError, 0, "#N/A"};
const TableCell kEmpty;

// Each cell as value/text: n number, b truth, t text, - nothing.
std::string Column(const std::vector<TableCell>& cells) {
  TextPool pool;
  ColumnType type;
  std::vector<KeptCell> kept;
  for (const TableCell& cell : cells) {
    type.Add(cell);
    kept.push_back(Keep(cell, &pool));
  }
  std::vector<std::string> out;
  for (const KeptCell& cell : kept) {
    const KeptCell value = type.Value(cell, &pool);
    const std::string text = type.Text(cell, pool);
    switch (value.kind) {
      case TableCell::Kind::kNumber:
        out.push_back(absl::StrCat("n", value.number, "/", text));
        break;
      case TableCell::Kind::kBool:
        out.push_back(absl::StrCat("b", value.number, "/", text));
        break;
      case TableCell::Kind::kText:
        out.push_back(absl::StrCat("t", pool.at(value.text), "/", text));
        break;
      default:
        out.push_back(absl::StrCat("-/", text));
    }
  }
  return absl::StrJoin(out, " ");
}

TEST(ColumnTypeTest, NumbersAlone) {
  EXPECT_EQ(Column({Number(1), Number(2.5)}), "n1/1.0 n2.5/2.5");
  EXPECT_EQ(Column({Number(1), Number(-0.0)}), "n1/1 n-0/0");
  EXPECT_EQ(Column({Number(0.5), Number(-0.0)}), "n0.5/0.5 n-0/0.0");
  EXPECT_EQ(Column({Text("1"), Text(" 2 ")}), "n1/1 n2/2");
  EXPECT_EQ(Column({Text("1"), Text("2.50")}), "n1/1.0 n2.5/2.5");
  EXPECT_EQ(Column({Number(1), Text("1e5")}), "n1/1.0 n100000/100000.0");
  EXPECT_EQ(Column({Number(1.5), Text("-inf"), Text("Infinity")}),
            "n1.5/1.5 t-inf/-inf tinf/inf");
  EXPECT_EQ(Column({Number(1), kError}), "n1/1.0 -/nan");
  EXPECT_EQ(Column({Truth(true), Number(3)}), "n1/1 n3/3");
  EXPECT_EQ(Column({Truth(true), Number(1.5)}), "n1/1.0 n1.5/1.5");
}

TEST(ColumnTypeTest, LargeIntegers) {
  EXPECT_EQ(Column({Number(1e20), Number(1)}),
            "n1e+20/100000000000000000000 n1/1");
  EXPECT_EQ(Column({Number(1e20), Number(1.5)}), "n1e+20/1e+20 n1.5/1.5");
  EXPECT_EQ(Column({Number(9223372036854775808.0), Number(-1), Number(0.5)}),
            "n9.22337e+18/9223372036854775808 n-1/-1 n0.5/0.5");
  EXPECT_EQ(Column({Number(9223372036854775807.0, "9223372036854775807")}),
            "n9.22337e+18/9223372036854775807");
  EXPECT_EQ(Column({Number(9223372036854775807.0, "9223372036854775807"),
                    Text("N/A")}),
            "n9.22337e+18/9223372036854775807 tN/A/N/A");
}

TEST(ColumnTypeTest, TruthsAlone) {
  EXPECT_EQ(Column({Truth(true), Truth(false)}), "b1/True b0/False");
  EXPECT_EQ(Column({Text("True"), Text("FALSE"), Truth(true)}),
            "b1/True b0/False b1/True");
  EXPECT_EQ(Column({Truth(true), Text("True")}), "b1/True tTrue/True");
  EXPECT_EQ(Column({Text("True"), Text("N/A")}), "tTrue/True tN/A/N/A");
  EXPECT_EQ(Column({Text("True"), Number(1)}), "tTrue/True n1/1");
}

TEST(ColumnTypeTest, AnythingElseIsWhatItIs) {
  EXPECT_EQ(Column({Number(1), Number(2.5), Text("N/A"), Text("3"),
                    Truth(false), kError, kEmpty}),
            "n1/1 n2.5/2.5 tN/A/N/A t3/3 b0/False -/nan -/");
  EXPECT_EQ(Column({Number(1.5), Text("nan")}), "n1.5/1.5 tnan/nan");
  EXPECT_EQ(Column({Number(1), kEmpty}), "n1/1 -/");
  EXPECT_EQ(Column({Number(1), Text("0x10")}), "n1/1 t0x10/0x10");
  EXPECT_EQ(Column({Number(1), Text("1,000")}), "n1/1 t1,000/1,000");
}

}  // namespace
}  // namespace rankprobe::analysis
