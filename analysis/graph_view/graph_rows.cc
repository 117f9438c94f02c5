// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/graph_rows.h"

#include <array>
#include <cstring>
#include <memory_resource>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/text/json_text.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

// Whether a number consists of digits with more than six decimals; such numbers
// are shown with six.
bool HasLongDecimals(absl::string_view number) {
  const size_t dot = number.find('.');
  if (dot == absl::string_view::npos || dot == 0 || dot > 20) return false;
  const size_t decimals = number.size() - dot - 1;
  if (decimals <= 6 || decimals > 20) return false;
  for (size_t i = 0; i < number.size(); ++i) {
    if (i != dot && !absl::ascii_isdigit(number[i])) return false;
  }
  return true;
}

// Shortens a string of the dump: "12.3456789%" becomes "12.345679%". Other text
// is returned unchanged.
std::string ShortDecimals(std::string text) {
  const bool percent = absl::EndsWith(text, "%");
  absl::string_view number = text;
  if (percent) number.remove_suffix(1);
  double value = 0;
  if (!HasLongDecimals(number) || !absl::SimpleAtod(number, &value)) {
    return text;
  }
  return absl::StrFormat("%.6f%s", value, percent ? "%" : "");
}

std::string ShortRelativeText(const StatDiff& diff) {
  std::string text = RelativeText(diff);
  if (!diff.percent.has_value() ||
      !HasLongDecimals(absl::StripSuffix(text, "%"))) {
    return text;
  }
  return absl::StrFormat("%.6f%%", *diff.percent);
}

// The fields of one row. Texts are views of the dump, or are stored here.
class Fields {
 public:
  void Clear() {
    fields_.clear();
    kept_.release();
  }
  absl::string_view Keep(absl::string_view text) {
    if (text.empty()) return {};
    char* const copy = static_cast<char*>(kept_.allocate(text.size(), 1));
    std::memcpy(copy, text.data(), text.size());
    return {copy, text.size()};
  }
  void SetKept(absl::string_view key, absl::string_view text) {
    Set(key, Keep(text));
  }
  void SetValue(absl::string_view key, const JsonValue& value) {
    if (value.is_null()) {
      Set(key, "null");
    } else if (value.is_string()) {
      SetString(key, value.text);
    } else {
      scratch_.clear();
      AppendPythonText(value, &scratch_);
      SetKept(key, scratch_);
    }
  }
  void SetString(absl::string_view key, absl::string_view text) {
    if (text == " ") {
      Set(key, "null");
    } else if (!MayChange(text)) {
      Set(key, text);
    } else {
      SetKept(key, ShortDecimals(absl::StrReplaceAll(
                       text, {{"'", ""}, {"None", "null"}})));
    }
  }
  // `text` outlives the row.
  void Set(absl::string_view key, absl::string_view text) {
    for (auto& field : fields_) {
      if (field.first == key) {
        field.second = text;
        return;
      }
    }
    fields_.emplace_back(key, text);
  }
  void SetMissing(absl::string_view key, absl::string_view text) {
    if (Find(key) == nullptr) fields_.emplace_back(key, text);
  }
  void Erase(absl::string_view key) {
    std::erase_if(fields_, [key](const auto& f) { return f.first == key; });
  }
  const absl::string_view* Find(absl::string_view key) const {
    for (const auto& field : fields_) {
      if (field.first == key) return &field.second;
    }
    return nullptr;
  }
  void AppendJson(std::string* out) const {
    out->push_back('{');
    bool first = true;
    for (const auto& [key, text] : fields_) {
      if (!first) out->append(", ");
      first = false;
      AppendJsonString(key, out);
      out->append(": ");
      AppendJsonString(text, out);
    }
    out->push_back('}');
  }
  template <typename Keep>
  void Retain(const Keep& keep) {
    std::erase_if(fields_, [&](const auto& f) { return !keep(f.first); });
  }

 private:
  // Whether the text may need a change: it has a quote, the word None, or a
  // number with a decimal point.
  static bool MayChange(absl::string_view text) {
    bool digits = true;
    for (const char c : text) {
      if (c == '\'' || c == 'N' || (c == '.' && digits)) return true;
      digits = digits && absl::ascii_isdigit(c);
    }
    return false;
  }

  std::vector<std::pair<absl::string_view, absl::string_view>> fields_;
  std::array<char, 4096> first_kept_;
  std::pmr::monotonic_buffer_resource kept_{first_kept_.data(),
                                            first_kept_.size()};
  std::string scratch_;
};

// Whether the statistic is an extra one that neither dump has.
bool IsNotThere(const RowPair& pair, size_t stat) {
  return stat >= kUsualStatCount &&
         pair.stats[stat].kind == StatDiff::Kind::kNotCompared;
}

void AddMetrics(DumpMode mode, const RowPair& pair, Fields* fields) {
  const absl::string_view consistent =
      pair.requires_grad_consistent ? "True" : "False";
  const absl::string_view result = VerdictName(pair.verdict);
  if (mode == DumpMode::kMd5) {
    fields->Set("Result", result);
    fields->Set("Requires_grad Consistent", consistent);
    fields->SetKept("Err_message", pair.MessagesText());
    return;
  }
  if (mode == DumpMode::kTensor) {
    for (size_t i = 0; i < kTensorMetricCount; ++i) {
      fields->SetKept(kTensorMetricNames[i], FormatMetric(pair.tensor, i));
    }
  } else {
    // The view colours by percent, so an equal number needs 0.0%.
    for (size_t i = 0; i < kStatCount; ++i) {
      if (IsNotThere(pair, i)) continue;
      const bool equal_reals =
          pair.stats[i].IsZero() &&
          pair.target->stats[i].kind == JsonValue::Kind::kFloat;
      fields->SetKept(kStatInfo[i].difference,
                      equal_reals ? "0.0" : DifferenceText(pair.stats[i]));
    }
    for (size_t i = 0; i < kStatCount; ++i) {
      if (IsNotThere(pair, i)) continue;
      const bool equal =
          pair.stats[i].IsZero() && pair.target->stats[i].is_number();
      fields->SetKept(kStatInfo[i].relative,
                      equal ? "0.0%" : ShortRelativeText(pair.stats[i]));
    }
  }
  fields->Set("Requires_grad Consistent", consistent);
  fields->Set("Result", result);
  if (pair.messages.empty()) {
    fields->Set("Err_message", "[]");
  } else {
    fields->SetKept("Err_message", pair.MessagesText());
  }
}

void FillFields(absl::string_view node, const DumpRow& row, DumpMode mode,
                bool show_md5, const RowPair* pair, Fields* fields) {
  fields->Clear();
  if (row.record == nullptr) {
    fields->Set("value", "null");
    return;
  }
  for (const JsonMember& member : row.record->fields()) {
    fields->SetValue(member.key, member.value);
  }
  fields->SetString("data_name", row.data_name);
  fields->SetMissing("requires_grad", "null");
  for (size_t i = 0; i < kUsualStatCount; ++i) {
    fields->SetMissing(kStatInfo[i].key, "null");
  }
  if (row.derived) {
    fields->SetString("dtype", row.dtype);
    fields->SetString("shape", row.shape);
    if (row.derived_stats) {
      for (size_t i = 0; i < kUsualStatCount; ++i) {
        fields->SetValue(kStatInfo[i].key, row.stats[i]);
      }
    }
  }
  if (row.merged_stats) {
    for (size_t i = 0; i < kStatCount; ++i) {
      if (i >= kUsualStatCount && fields->Find(kStatInfo[i].key) == nullptr)
        continue;
      fields->SetValue(kStatInfo[i].key, row.stats[i]);
    }
  }
  if (show_md5) {
    fields->SetString("md5", row.md5);
  } else {
    fields->Erase("md5");
  }
  if (row.p2p != nullptr) {
    const bool batch = absl::StrContains(node, "batch_isend_irecv");
    for (const absl::string_view key :
         {"class_type", "op", "peer", "tag", "group_id"}) {
      if (batch && key != "class_type") continue;
      const JsonValue* const value = row.p2p->Find(key);
      fields->SetValue(key, value == nullptr ? JsonValue() : *value);
    }
  }
  const absl::string_view* const type = fields->Find("type");
  if (type != nullptr && *type == "torch.ProcessGroup") {
    fields->Retain([](absl::string_view key) {
      return key == "type" || key == "group_ranks" || key == "group_id" ||
             key == "data_name";
    });
    // Metrics of a process group carry no information unless the groups differ.
    if (pair != nullptr && pair->verdict == Verdict::kPass) return;
  }
  const absl::string_view* const max = fields->Find(kStatInfo[kMax].key);
  if (max != nullptr && *max == "null") {
    fields->Clear();
    fields->Set("value", "null");
    return;
  }
  if (pair != nullptr) AddMetrics(mode, *pair, fields);
}

}  // namespace

RowTexts RowsAsJson(absl::string_view node, absl::Span<const DumpRow> rows,
                    DumpMode mode, bool show_md5,
                    absl::Span<const RowPair> pairs) {
  RowTexts out;
  out.input.assign("{");
  out.output.assign("{");
  Fields fields;
  for (size_t i = 0; i < rows.size(); ++i) {
    const DumpRow& row = rows[i];
    std::string* const side =
        row.state == RowState::kOutput ? &out.output : &out.input;
    if (side->size() > 1) side->append(", ");
    AppendJsonString(row.name, side);
    side->append(": ");
    FillFields(node, row, mode, show_md5, pairs.empty() ? nullptr : &pairs[i],
               &fields);
    fields.AppendJson(side);
  }
  out.input.push_back('}');
  out.output.push_back('}');
  return out;
}

}  // namespace rankprobe::analysis
