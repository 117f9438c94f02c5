// SPDX-License-Identifier: Apache-2.0
#include "cli/output/output.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/output/given_names.h"
#include "common/text/visible_text.h"
#include "google/protobuf/descriptor.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace rankprobe {
namespace {

bool LooksLikeNumber(const std::string& cell) {
  return !cell.empty() && absl::ascii_isdigit(cell[0]);
}

// Returns the number of terminal columns of a text, exact enough for a table:
// two for East Asian letters and pictures, none for combining marks. `visible`
// is UTF-8, as returned by VisibleText.
size_t TextColumns(absl::string_view visible) {
  constexpr struct {
    uint32_t first, last;
    size_t columns;
  } kOthers[] = {
      {0x300, 0x36f, 0},   {0x1100, 0x115f, 2},   {0x200b, 0x200d, 0},
      {0x2e80, 0xa4cf, 2}, {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},
      {0xfe00, 0xfe0f, 0}, {0xfe30, 0xfe6f, 2},   {0xff00, 0xff60, 2},
      {0xffe0, 0xffe6, 2}, {0x1f300, 0x1faff, 2}, {0x20000, 0x3fffd, 2}};
  size_t columns = 0;
  for (size_t at = 0; at < visible.size();) {
    const auto first = static_cast<unsigned char>(visible[at]);
    const size_t bytes = first < 0x80   ? 1
                         : first < 0xe0 ? 2
                         : first < 0xf0 ? 3
                                        : 4;
    uint32_t code = bytes == 1 ? first : first & (0xffU >> (bytes + 1));
    for (size_t i = 1; i < bytes && at + i < visible.size(); ++i)
      code = code << 6 | (static_cast<unsigned char>(visible[at + i]) & 0x3fU);
    size_t wide = 1;
    for (const auto& other : kOthers) {
      if (code >= other.first && code <= other.last) wide = other.columns;
    }
    columns += wide;
    at += bytes;
  }
  return columns;
}

using JsonWriter = rapidjson::Writer<rapidjson::StringBuffer>;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void WriteMessage(const Message& message, JsonWriter* writer);

// Writes one value of a field; `index` is -1 for a singular one. Unlike
// proto3's own JSON, 64-bit integers are numbers, so that scripts can compare
// them.
void WriteValue(const Message& message, const FieldDescriptor& field, int index,
                JsonWriter* writer) {
  const auto& r = *message.GetReflection();
  const bool many = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      writer->Int(many ? r.GetRepeatedInt32(message, &field, index)
                       : r.GetInt32(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      writer->Int64(many ? r.GetRepeatedInt64(message, &field, index)
                         : r.GetInt64(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      writer->Uint(many ? r.GetRepeatedUInt32(message, &field, index)
                        : r.GetUInt32(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      writer->Uint64(many ? r.GetRepeatedUInt64(message, &field, index)
                          : r.GetUInt64(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = many ? r.GetRepeatedDouble(message, &field, index)
                                : r.GetDouble(message, &field);
      // JSON has no infinity; Python and JavaScript read this text.
      if (std::isfinite(value)) {
        writer->Double(value);
      } else {
        writer->String(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
      }
      break;
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      writer->Bool(many ? r.GetRepeatedBool(message, &field, index)
                        : r.GetBool(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      writer->String((many ? r.GetRepeatedEnum(message, &field, index)
                           : r.GetEnum(message, &field))
                         ->name()
                         .c_str());
      break;
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text = many ? r.GetRepeatedString(message, &field, index)
                              : r.GetString(message, &field);
      if (field.type() == FieldDescriptor::TYPE_BYTES) {
        writer->String(absl::BytesToHexString(text).c_str());
      } else {
        text = WithGivenNames(text);
        writer->String(text.c_str(),
                       static_cast<rapidjson::SizeType>(text.size()));
      }
      break;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      WriteMessage(many ? r.GetRepeatedMessage(message, &field, index)
                        : r.GetMessage(message, &field),
                   writer);
      break;
    default:
      writer->Null();
  }
}

// Writes every field, so that keys are stable: an absent optional field is
// null.
void WriteMessage(const Message& message, JsonWriter* writer) {
  const auto& reflection = *message.GetReflection();
  writer->StartObject();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    writer->Key(field.name().c_str());
    if (field.is_repeated()) {
      writer->StartArray();
      for (int k = 0; k < reflection.FieldSize(message, &field); ++k)
        WriteValue(message, field, k, writer);
      writer->EndArray();
    } else if (field.has_presence() && !reflection.HasField(message, &field)) {
      writer->Null();
    } else {
      WriteValue(message, field, -1, writer);
    }
  }
  writer->EndObject();
}

}  // namespace

std::string output_internal::Show(absl::string_view text) {
  return VisibleText(WithGivenNames(text));
}

std::string output_internal::Show(Lines lines) {
  std::string out;
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(lines.text, '\n'))
    absl::StrAppend(&out, std::exchange(first, false) ? "" : "\n", Show(line));
  return out;
}

void ClearTerminal() { std::fputs("\033[H\033[J", stdout); }

void PrintJson(absl::string_view json) {
  const std::string text = VisibleJson(json);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

void Table::Add(const std::vector<std::string>& row) {
  std::vector<std::string>& cells = rows_.emplace_back();
  for (const std::string& cell : row) cells.push_back(VisibleText(cell));
}

std::string Table::ToText() const {
  // A wider cell shifts only its own row.
  constexpr size_t kWidest = 60;
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], std::min(TextColumns(row[c]), kWidest));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const size_t columns = TextColumns(row[c]);
      const std::string padding(widths[c] > columns ? widths[c] - columns : 0,
                                ' ');
      if (c > 0) line += "  ";
      line += LooksLikeNumber(row[c]) ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string ToJson(const google::protobuf::Message& message) {
  rapidjson::StringBuffer buffer;
  JsonWriter writer(buffer);
  WriteMessage(message, &writer);
  return {buffer.GetString(), buffer.GetSize()};
}

Progress::Style Progress::StyleFor(bool json, Style otherwise) {
  // A program that reads JSON may request progress lines.
  if (const char* const wanted = std::getenv("RANKPROBE_PROGRESS");
      wanted != nullptr && absl::string_view(wanted) == "lines") {
    return Style::kLines;
  }
  if (json) return Style::kNone;
  return ::isatty(STDERR_FILENO) != 0 ? Style::kBar : otherwise;
}

void Progress::Show(uint64_t done, uint64_t total, absl::string_view amount,
                    absl::string_view name) {
  const uint64_t percent =
      total == 0 ? 0 : std::min<uint64_t>(100, 100 * done / total);
  if (style_ == Style::kLines) {
    // msprobe prints each percent; a hundred lines are too many for a log file
    // (docs/compatibility.md, D8).
    if (percent / 10 < next_tenth_) return;
    next_tenth_ = percent / 10 + 1;
    Print(stderr, "%s %d%%%s%s\n", what_, percent / 10 * 10,
          amount.empty() ? "" : "  ", amount);
    return;
  }
  if (style_ == Style::kNone) return;
  const size_t filled = percent * 30 / 100;
  // A line that wraps cannot be redrawn completely.
  if (name.size() > 40) name.remove_prefix(name.size() - 40);
  std::string bar =
      absl::StrFormat("[%s%s] %3d%%  %s%s%s  %s", std::string(filled, '#'),
                      std::string(30 - filled, '.'), percent, what_,
                      amount.empty() ? "" : "  ", amount, name);
  for (char& c : bar) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  if (bar == bar_) return;
  bar_ = std::move(bar);
  absl::FPrintF(stderr, "\r\x1b[K%s", bar_);
}

void Progress::Clear() {
  if (bar_.empty()) return;
  std::fputs("\r\x1b[K", stderr);
  bar_.clear();
}

}  // namespace rankprobe
