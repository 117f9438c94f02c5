// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/xlsx_reader.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "analysis/table_reader/sheet_parser.h"
#include "analysis/table_reader/xml_parser.h"
#include "analysis/table_reader/zip_file.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr uint64_t kMaxIndexBytes = 1 << 20;
constexpr size_t kMaxSharedBytes = 256 << 20;
constexpr size_t kMaxShared = 8 << 20;
constexpr absl::string_view kBook = "xl/workbook.xml";
constexpr absl::string_view kRelations = "xl/_rels/workbook.xml.rels";

class NoText : public XmlHandler {
 public:
  absl::Status OnEnd(absl::string_view /*name*/) override {
    return absl::OkStatus();
  }
  absl::Status OnText(absl::string_view /*text*/) override {
    return absl::OkStatus();
  }
};

// The parts of a workbook, by the names that its sheets call them.
class Relations : public NoText {
 public:
  absl::Status OnStart(absl::string_view name,
                       const XmlAttributes& attributes) override {
    if (name != "Relationship" || attributes.Find("TargetMode") == "External") {
      return absl::OkStatus();
    }
    absl::string_view target = attributes.Find("Target");
    const std::string part = target.substr(0, 1) == "/"
                                 ? std::string(target.substr(1))
                                 : absl::StrCat("xl/", target);
    if (absl::EndsWith(attributes.Find("Type"), "/sharedStrings")) {
      shared = part;
    }
    parts[std::string(attributes.Find("Id"))] = part;
    return absl::OkStatus();
  }
  std::map<std::string, std::string> parts;
  std::string shared;
};

class SheetList : public NoText {
 public:
  absl::Status OnStart(absl::string_view name,
                       const XmlAttributes& attributes) override {
    if (name == "sheet") ids.emplace_back(attributes.Find("id"));
    return absl::OkStatus();
  }
  std::vector<std::string> ids;
};

class SharedParser : public XmlHandler {
 public:
  explicit SharedParser(SharedTexts* out) : out_(out) {}
  absl::Status OnStart(absl::string_view name,
                       const XmlAttributes& /*attributes*/) override {
    if (name == "rPh") ++phonetic_;
    in_text_ = name == "t";
    return absl::OkStatus();
  }
  absl::Status OnEnd(absl::string_view name) override {
    in_text_ = false;
    if (name == "rPh") --phonetic_;
    if (name != "si") return absl::OkStatus();
    if (out_->size() == kMaxShared) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxShared, " shared texts"));
    }
    out_->End();
    return absl::OkStatus();
  }
  absl::Status OnText(absl::string_view text) override {
    if (!in_text_ || phonetic_ > 0) return absl::OkStatus();
    if (out_->bytes() + text.size() > kMaxSharedBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxSharedBytes, " bytes of shared text"));
    }
    out_->Append(text);
    return absl::OkStatus();
  }

 private:
  SharedTexts* const out_;
  bool in_text_ = false;
  int phonetic_ = 0;
};

absl::Status Parse(const ZipFile& zip, const std::string& part,
                   uint64_t max_bytes, XmlHandler* handler) {
  XmlParser parser(handler);
  RP_RETURN_IF_ERROR(zip.Read(
      part, max_bytes,
      [&parser](absl::string_view piece) { return parser.Feed(piece); }));
  return parser.Finish();
}

// Which part of the workbook a fault is in.
absl::Status In(const std::string& part, const absl::Status& status) {
  return absl::IsInvalidArgument(status)
             ? absl::InvalidArgumentError(
                   absl::StrCat(part, ": ", status.message()))
             : status;
}

}  // namespace

absl::Status ReadXlsx(const RandomAccessFile& file, uint64_t file_size,
                      const TableLimits& limits, const RowFn& on_row) {
  RP_ASSIGN_OR_RETURN(const ZipFile zip, ZipFile::Open(&file, file_size));
  const std::string book(kBook);
  const std::string index(kRelations);
  if (!zip.Has(book) || !zip.Has(index)) {
    return absl::InvalidArgumentError("is no workbook (no xl/workbook.xml)");
  }
  Relations relations;
  RP_RETURN_IF_ERROR(In(index, Parse(zip, index, kMaxIndexBytes, &relations)));
  SheetList sheets;
  RP_RETURN_IF_ERROR(In(book, Parse(zip, book, kMaxIndexBytes, &sheets)));
  if (sheets.ids.empty() || sheets.ids.size() > limits.sheets) {
    return absl::InvalidArgumentError(absl::StrCat("has ", sheets.ids.size(),
                                                   " sheets; 1 to ",
                                                   limits.sheets, " are read"));
  }
  SharedTexts shared;
  if (!relations.shared.empty() && zip.Has(relations.shared)) {
    SharedParser parser(&shared);
    RP_RETURN_IF_ERROR(
        In(relations.shared,
           Parse(zip, relations.shared, limits.shared_bytes, &parser)));
  }
  for (size_t i = 0; i < sheets.ids.size(); ++i) {
    const auto part = relations.parts.find(sheets.ids[i]);
    if (part == relations.parts.end()) {
      return absl::InvalidArgumentError("has a sheet without a file");
    }
    absl::Status from_row;
    SheetParser parser(
        i, limits, shared,
        [&](size_t sheet, uint64_t row, absl::Span<const TableCell> cells) {
          from_row = on_row(sheet, row, cells);
          return from_row;
        });
    const absl::Status read =
        Parse(zip, part->second, limits.sheet_bytes, &parser);
    if (!from_row.ok()) return from_row;
    RP_RETURN_IF_ERROR(In(part->second, read));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
