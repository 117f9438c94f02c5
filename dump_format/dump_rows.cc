// SPDX-License-Identifier: Apache-2.0
#include "dump_format/dump_rows.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr int kMaxDepth = 400;

struct Section {
  absl::string_view key;
  absl::string_view suffix;
  RowState state;
};
constexpr std::array<Section, 5> kSections = {{
    {"input_args", ".input", RowState::kInput},
    {"input_kwargs", ".input", RowState::kInput},
    {"input", ".input", RowState::kInput},
    {"output", ".output", RowState::kOutput},
    {"parameters", ".parameters", RowState::kParameters},
}};

absl::string_view LastSegment(absl::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == absl::string_view::npos ? name : name.substr(dot + 1);
}

absl::string_view PythonTypeOf(const JsonValue* value) {
  if (value == nullptr) return "<class 'NoneType'>";
  switch (value->kind) {
    case JsonValue::Kind::kNull:
      return "<class 'NoneType'>";
    case JsonValue::Kind::kFalse:
    case JsonValue::Kind::kTrue:
      return "<class 'bool'>";
    case JsonValue::Kind::kInt:
      return "<class 'int'>";
    case JsonValue::Kind::kFloat:
      return "<class 'float'>";
    case JsonValue::Kind::kString:
      return "<class 'str'>";
    case JsonValue::Kind::kArray:
      return "<class 'list'>";
    case JsonValue::Kind::kObject:
      return "<class 'dict'>";
  }
  return "";
}

bool IsTruthy(const JsonValue* value) {
  if (value == nullptr) return false;
  switch (value->kind) {
    case JsonValue::Kind::kNull:
    case JsonValue::Kind::kFalse:
      return false;
    case JsonValue::Kind::kInt:
    case JsonValue::Kind::kFloat:
      return value->number != 0;
    case JsonValue::Kind::kString:
      return !value->text.empty();
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kObject:
      return value->size != 0;
    default:
      return true;
  }
}

class Flattener {
 public:
  Flattener(absl::string_view entry, StatSet stats, JsonDocument* document,
            std::vector<DumpRow>* rows)
      : grads_(IsParametersGradEntry(entry)),
        stats_(stats),
        document_(document),
        rows_(rows) {}

  absl::Status Add(const JsonValue& value, const std::string& name,
                   RowState state, int depth) {
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat(name.substr(0, 200), " is nested too deep"));
    }
    if (value.is_null()) {
      DumpRow& row = rows_->emplace_back();
      row.name = document_->Keep(name);
      row.state = state;
      return absl::OkStatus();
    }
    if (value.is_array()) {
      int64_t index = 0;
      for (const JsonValue& item : value.items()) {
        RP_RETURN_IF_ERROR(Add(item,
                               grads_ ? name : absl::StrCat(name, ".", index),
                               state, depth + 1));
        ++index;
      }
      return absl::OkStatus();
    }
    // A word instead of a record (a device that was passed as text) has no row
    // in msprobe's tables.
    if (!value.is_object()) return absl::OkStatus();
    const JsonValue* const class_type = value.Find("class_type");
    if (class_type != nullptr && class_type->is_string() &&
        class_type->text == "torch.distributed.P2POp") {
      const JsonValue* const tensor = value.Find("tensor");
      DumpRow& row = rows_->emplace_back();
      row.name = document_->Keep(name);
      row.state = state;
      if (tensor != nullptr && tensor->is_object()) {
        Fill(*tensor, name, &row);
      }
      row.p2p = &value;
      return absl::OkStatus();
    }
    const JsonValue* const type = value.Find("type");
    if (type != nullptr && type->is_string()) {
      DumpRow& row = rows_->emplace_back();
      row.state = state;
      row.name = document_->Keep(name);
      Fill(value, name, &row);
      return absl::OkStatus();
    }
    for (const JsonMember& member : value.fields()) {
      RP_RETURN_IF_ERROR(Add(member.value, absl::StrCat(name, ".", member.key),
                             state, depth + 1));
    }
    return absl::OkStatus();
  }

 private:
  absl::string_view Text(const JsonValue& value) {
    if (value.is_string()) return value.text;
    scratch_.clear();
    AppendPythonText(value, &scratch_);
    return document_->Keep(scratch_);
  }
  JsonValue StringValue(absl::string_view text) {
    JsonValue value;
    value.kind = JsonValue::Kind::kString;
    value.text = text;
    return value;
  }

  void Fill(const JsonValue& record, absl::string_view name, DumpRow* row) {
    row->record = &record;
    row->has_dtype = true;
    const JsonValue* const data_name = record.Find("data_name");
    if (data_name != nullptr && data_name->is_string() &&
        !data_name->text.empty()) {
      row->data_name = data_name->text;
      const size_t dot = row->data_name.rfind('.');
      row->name = dot == absl::string_view::npos
                      ? row->data_name
                      : row->data_name.substr(0, dot);
    }
    const JsonValue* const requires_grad = record.Find("requires_grad");
    if (requires_grad != nullptr && !requires_grad->is_null()) {
      row->requires_grad = StringValue(Text(*requires_grad));
    }
    for (size_t i = 0; i < kStatCount; ++i) {
      if (!stats_.Has(i)) continue;
      const JsonValue* const stat = record.Find(kStatInfo[i].key);
      if (stat != nullptr) row->stats[i] = *stat;
    }
    const JsonValue* const why = record.Find(kNotPutTogether);
    if (why != nullptr && why->is_string()) row->not_put_together = why->text;
    const JsonValue* const md5 = record.Find("md5");
    if (IsTruthy(md5)) row->md5 = Text(*md5);
    const JsonValue* const shape = record.Find("shape");
    if (shape != nullptr) row->shape = Text(*shape);
    const JsonValue* const dtype = record.Find("dtype");
    const JsonValue* const value = record.Find("value");
    if (IsTruthy(dtype)) {
      row->dtype = Text(*dtype);
    } else {
      Derive(record, value, name, row);
    }
    if (row->md5.empty()) {
      scratch_.clear();
      if (value != nullptr) AppendPythonText(*value, &scratch_);
      const uLong crc =
          crc32(0, reinterpret_cast<const Bytef*>(scratch_.data()),
                static_cast<uInt>(scratch_.size()));
      row->md5 = document_->Keep(absl::StrFormat("%08x", crc));
    }
  }

  void SetStats(const JsonValue& value, DumpRow* row) {
    row->derived_stats = true;
    std::fill_n(row->stats.begin(), kUsualStatCount, value);
  }

  void Derive(const JsonValue& record, const JsonValue* value,
              absl::string_view name, DumpRow* row) {
    row->derived = true;
    const absl::string_view type = record.Find("type")->text;
    row->shape = "[]";
    const absl::string_view last = LastSegment(name);
    if (type == "torch.Size") {
      row->dtype = type;
      row->shape = value == nullptr ? "None" : Text(*value);
    } else if (type == "slice") {
      row->dtype = type;
      row->shape =
          document_->Keep(value != nullptr && value->is_array()
                              ? absl::StrCat("(", value->items().size(), ",)")
                              : std::string("()"));
    } else if (type == "ellipsis") {
      row->dtype = type;
      SetStats(value == nullptr ? JsonValue() : *value, row);
    } else if (last == "src" || last == "dst" || last == "group_src" ||
               last == "group_dst") {
      row->dtype = type;
      row->md5 = value == nullptr ? "None" : Text(*value);
      SetStats(StringValue(row->md5), row);
    } else if (type == "torch.ProcessGroup") {
      row->dtype = type;
      const JsonValue* const ranks = record.Find("group_ranks");
      row->md5 = ranks == nullptr ? "None" : Text(*ranks);
      SetStats(StringValue(row->md5), row);
    } else {
      row->dtype = PythonTypeOf(value);
      SetStats(value == nullptr ? JsonValue() : *value, row);
    }
  }

  const bool grads_;
  const StatSet stats_;
  JsonDocument* const document_;
  std::vector<DumpRow>* const rows_;
  std::string scratch_;
};

}  // namespace

bool IsParametersGradEntry(absl::string_view entry) {
  const size_t dot = entry.rfind('.');
  if (LastSegment(entry) == "parameters_grad") return true;
  return dot != absl::string_view::npos &&
         LastSegment(entry.substr(0, dot)) == "parameters_grad";
}

bool IsCallEntry(absl::string_view entry) {
  return LastSegment(entry) != "debug" && !IsParametersGradEntry(entry);
}

absl::Status ReadRowsInRecordOrder(absl::string_view entry, StatSet stats,
                                   JsonDocument* record,
                                   std::vector<DumpRow>* rows) {
  rows->clear();
  Flattener flattener(entry, stats, record, rows);
  const JsonValue& root = record->root();
  const std::string name(entry);
  if (LastSegment(entry) == "debug") {
    RP_RETURN_IF_ERROR(flattener.Add(root, name, RowState::kDebug, 0));
    // The duration of a step (task monitor) always differs.
    rows->erase(std::remove_if(rows->begin(), rows->end(),
                               [](const DumpRow& row) {
                                 return absl::EndsWith(row.name,
                                                       ".debug.step_seconds");
                               }),
                rows->end());
    return absl::OkStatus();
  }
  if (IsParametersGradEntry(entry)) {
    return flattener.Add(root, name, RowState::kParametersGrad, 0);
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("entry ", entry, " is not an object"));
  }
  for (const Section& section : kSections) {
    const JsonValue* const value = root.Find(section.key);
    if (value == nullptr) continue;
    RP_RETURN_IF_ERROR(flattener.Add(
        *value, absl::StrCat(entry, section.suffix), section.state, 0));
  }
  return absl::OkStatus();
}

absl::Status ReadRows(absl::string_view entry, StatSet stats,
                      JsonDocument* record, std::vector<DumpRow>* rows) {
  RP_RETURN_IF_ERROR(ReadRowsInRecordOrder(entry, stats, record, rows));
  std::stable_sort(
      rows->begin(), rows->end(),
      [](const DumpRow& a, const DumpRow& b) { return a.state < b.state; });
  return absl::OkStatus();
}

}  // namespace rankprobe
