// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/xlsx_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "analysis/testing/zip_text.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using testing::TextFile;
using testing::Workbook;
using testing::ZipPart;
using testing::ZipText;

std::string Show(const TableCell& cell) {
  switch (cell.kind) {
    case TableCell::Kind::kEmpty:
      return "-";
    case TableCell::Kind::kNumber:
      return absl::StrCat("n ", cell.number, " ", cell.text);
    case TableCell::Kind::kBool:
      return cell.number == 0 ? "false" : "true";
    case TableCell::Kind::kError:
      return absl::StrCat("e ", cell.text);
    case TableCell::Kind::kText:
      return absl::StrCat("t ", cell.text);
  }
  return "?";
}

std::string Read(const std::vector<ZipPart>& parts,
                 const TableLimits& limits = {}) {
  const TextFile file(ZipText(parts));
  std::string out;
  const absl::Status status = ReadXlsx(
      file, file.size(), limits,
      [&out](size_t sheet, uint64_t row, absl::Span<const TableCell> cells) {
        std::vector<std::string> shown;
        for (const TableCell& cell : cells) shown.push_back(Show(cell));
        absl::StrAppend(&out, sheet, ".", row, ": ", absl::StrJoin(shown, "|"),
                        "\n");
        return absl::OkStatus();
      });
  return status.ok() ? out : absl::StrCat("! ", status.message());
}

std::string ReadSheet(const std::string& sheet,
                      const TableLimits& limits = {}) {
  return Read(Workbook({sheet},
                       "<si><t>one</t></si><si><r><t>t</t></r><rPh>"
                       "<t>?</t></rPh><r><t>wo</t></r></si>"),
              limits);
}

TEST(XlsxReaderTest, CellsOfEveryKind) {
  EXPECT_EQ(
      ReadSheet("<row r=\"1\"><c r=\"A1\" t=\"s\"><v>1</v></c>"
                "<c r=\"C1\"><v>1.5</v></c><c t=\"b\"><v>1</v></c>"
                "<c t=\"e\"><v>#N/A</v></c></row>"
                "<row><c t=\"inlineStr\"><is><t xml:space=\"preserve\"> a"
                "&amp;&#x20AC;</t><rPh><t>x</t></rPh></is></c>"
                "<c t=\"str\"><f>1+1</f><v>2</v></c><c/><c r=\"D2\" s=\"3\"/>"
                "</row><row r=\"9\"><c><v>1E+20</v></c></row>"),
      "0.0: t two|-|n 1.5 1.5|true|e #N/A\n"
      "0.1: t  a&\xE2\x82\xAC|t 2|-|-\n"
      "0.8: n 1e+20 1E+20\n");
}

TEST(XlsxReaderTest, SheetsInTheirOrderAndPrefixes) {
  EXPECT_EQ(Read(Workbook({"<row><c><v>1</v></c></row>",
                           "<x:row xmlns:x=\"x\"><x:c><x:v>2</x:v></x:c>"
                           "</x:row>"})),
            "0.0: n 1 1\n1.0: n 2 2\n");
}

TEST(XlsxReaderTest, EntitiesAndDocumentTypesAreRefused) {
  const auto with = [](const std::string& declaration) {
    std::vector<ZipPart> parts = Workbook({""});
    parts[0].content =
        absl::StrCat("<?xml version=\"1.0\"?>", declaration,
                     "<worksheet><sheetData><row><c t=\"str\"><v>&a;</v></c>"
                     "</row></sheetData></worksheet>");
    return Read(parts);
  };
  const std::string refused =
      "! xl/worksheets/s0.xml: XML with a document type, which no table has";
  EXPECT_EQ(with("<!DOCTYPE x [<!ENTITY a \"&b;&b;\"><!ENTITY b \"&a;&a;\">]>"),
            refused);
  EXPECT_EQ(with("<!DOCTYPE x [<!ENTITY a SYSTEM \"file:///etc/passwd\">]>"),
            refused);
  EXPECT_EQ(with("<!DOCTYPE x SYSTEM \"http://127.0.0.1/x.dtd\">"), refused);
  EXPECT_THAT(with(""), HasSubstr("undefined entity"));
}

TEST(XlsxReaderTest, WhatIsTooMuchIsRefused) {
  TableLimits limits;
  limits.rows = 3;
  EXPECT_THAT(ReadSheet("<row r=\"4\"/>", limits),
              HasSubstr("more than 3 rows"));
  EXPECT_THAT(ReadSheet("<row><c r=\"IW1\"><v>1</v></c></row>"),
              HasSubstr("a cell of another place"));
  std::string wide = "<row>";
  for (int i = 0; i < 257; ++i) wide += "<c/>";
  EXPECT_THAT(ReadSheet(wide + "</row>"),
              HasSubstr("row 1: more than 256 columns"));
  limits.row_bytes = 1000;
  EXPECT_THAT(ReadSheet("<row><c t=\"str\"><v>" + std::string(1001, 'x') +
                            "</v></c></row>",
                        limits),
              HasSubstr("row 1: more than 1000 bytes"));
  limits.sheet_bytes = 100;
  EXPECT_THAT(ReadSheet(std::string(200, ' '), limits),
              HasSubstr("at most 100 are read"));
  limits.shared_bytes = 10;
  EXPECT_THAT(ReadSheet("", limits), HasSubstr("xl/sharedStrings.xml has"));
  EXPECT_THAT(Read(Workbook(std::vector<std::string>(65))),
              HasSubstr("has 65 sheets"));
  std::string deep;
  for (int i = 0; i < 70; ++i) deep += "<a>";
  EXPECT_THAT(ReadSheet(deep), HasSubstr("64 levels"));
  // One tag that never ends would be read again with each piece.
  EXPECT_THAT(ReadSheet("<row a=\"" + std::string(8 << 20, 'x') + "\"/>"),
              HasSubstr("an XML tag of more than 1 MiB"));
  std::vector<ZipPart> parts = Workbook({""});
  parts[0].content = "<!--" + std::string(8 << 20, 'x') + "--><worksheet/>";
  EXPECT_THAT(Read(parts), HasSubstr("an XML tag of more than 1 MiB"));
  // A long text is no long tag.
  EXPECT_EQ(ReadSheet("<row><c t=\"str\"><v>" + std::string(3 << 20, 'x') +
                      "</v></c></row>")
                .size(),
            (3 << 20) + 8);
}

TEST(XlsxReaderTest, WhatIsNoWorkbookIsSaid) {
  EXPECT_THAT(Read({{"word/document.xml", "<x/>"}}), HasSubstr("no workbook"));
  EXPECT_THAT(ReadSheet("<row>"), HasSubstr("bad XML in line 1"));
  EXPECT_THAT(ReadSheet("<row><c t=\"s\"><v>2</v></c></row>"),
              HasSubstr("row 1, column 1: a shared text that is not there"));
  EXPECT_THAT(ReadSheet("<row><c><v>1,5</v></c></row>"),
              HasSubstr("row 1, column 1: is no number"));
  EXPECT_THAT(ReadSheet("<row r=\"2\"/><row r=\"2\"/>"),
              HasSubstr("a row of another place"));
  EXPECT_THAT(ReadSheet("<row><row/></row>"), HasSubstr("a row in a row"));
  std::vector<ZipPart> parts = Workbook({""});
  parts[0].name = "xl/worksheets/s7.xml";
  EXPECT_THAT(Read(parts), HasSubstr("has no xl/worksheets/s0.xml"));
  parts = Workbook({""});
  parts.back().content =
      absl::StrReplaceAll(parts.back().content, {{"rId0", "rId1"}});
  EXPECT_THAT(Read(parts), HasSubstr("without a file"));
}

}  // namespace
}  // namespace rankprobe::analysis
