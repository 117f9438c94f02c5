// SPDX-License-Identifier: Apache-2.0
#include "web/graph/hand_match.h"

#include <array>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "analysis/compare/verdict.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/json_value.h"
#include "dump_format/statistics.h"

namespace rankprobe {
namespace {

using analysis::RowPair;

absl::string_view TextOf(const JsonValue& record, absl::string_view key) {
  const JsonValue* const value = record.Find(key);
  return value == nullptr || !value->is_string() || value->text == "null"
             ? absl::string_view()
             : value->text;
}

// A database stores all values as texts: "1.5", "nan", "null".
JsonValue StatOf(const JsonValue& record, absl::string_view key) {
  JsonValue value;
  value.text = TextOf(record, key);
  if (value.text.empty()) return value;
  double number = 0;
  int64_t whole = 0;
  if (absl::SimpleAtoi(value.text, &whole)) {
    value.kind = JsonValue::Kind::kInt;
    value.number = static_cast<double>(whole);
  } else if (absl::SimpleAtod(value.text, &number)) {
    value.kind = JsonValue::Kind::kFloat;
    value.number = number;
  } else {
    value.kind = JsonValue::Kind::kString;
  }
  return value;
}

absl::Status AddRows(const JsonValue& side, bool output,
                     std::vector<DumpRow>* rows) {
  for (const JsonMember& member : side.fields()) {
    DumpRow& row = rows->emplace_back();
    row.name = member.key;
    row.state = output ? RowState::kOutput
                : absl::StrContains(member.key, ".parameters.")
                    ? RowState::kParameters
                    : RowState::kInput;
    const JsonValue& record = member.value;
    if (!record.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(OneLine(member.key), ": its values are not an object"));
    }
    row.dtype = TextOf(record, "dtype");
    row.shape = TextOf(record, "shape");
    row.md5 = TextOf(record, "md5");
    row.has_dtype = !row.dtype.empty();
    if (row.has_dtype || record.Find("type") != nullptr) row.record = &record;
    const absl::string_view requires_grad = TextOf(record, "requires_grad");
    if (!requires_grad.empty()) {
      row.requires_grad.kind = JsonValue::Kind::kString;
      row.requires_grad.text = requires_grad;
    }
    for (size_t i = 0; i < kStatCount; ++i) {
      row.stats[i] = StatOf(record, kStatInfo[i].key);
    }
  }
  return absl::OkStatus();
}

struct ParsedValues {
  JsonDocument input;
  JsonDocument output;
  std::vector<DumpRow> rows;

  absl::Status Parse(const GraphDatabase::Values& values) {
    for (const auto& [document, text] :
         {std::make_pair(&input, &values.input),
          std::make_pair(&output, &values.output)}) {
      if (text->empty()) continue;
      RP_RETURN_IF_ERROR(document->ParseView(*text));
      RP_RETURN_IF_ERROR(AddRows(document->root(), document == &output, &rows));
    }
    return absl::OkStatus();
  }
};

void AppendMetric(absl::string_view key, absl::string_view value,
                  std::string* out) {
  absl::StrAppend(out, out->back() == '{' ? "" : ",", JsonString(key), ":",
                  JsonString(value));
}

void AppendMetrics(DumpMode mode, const RowPair& pair, std::string* side) {
  if (side->size() > 1) side->push_back(',');
  absl::StrAppend(side, JsonString(pair.target->name), ":{");
  for (size_t i = 0; mode == DumpMode::kStatistics && i < kStatCount; ++i) {
    if (pair.stats[i].kind == analysis::StatDiff::Kind::kNotCompared) continue;
    AppendMetric(kStatInfo[i].difference,
                 analysis::DifferenceText(pair.stats[i]), side);
  }
  for (size_t i = 0; mode == DumpMode::kStatistics && i < kStatCount; ++i) {
    if (pair.stats[i].kind == analysis::StatDiff::Kind::kNotCompared) continue;
    AppendMetric(kStatInfo[i].relative, analysis::RelativeText(pair.stats[i]),
                 side);
  }
  AppendMetric("Requires_grad Consistent",
               pair.requires_grad_consistent ? "True" : "False", side);
  AppendMetric("Result", analysis::VerdictName(pair.verdict), side);
  AppendMetric("Err_message",
               pair.messages.empty() ? "[]" : pair.MessagesText(), side);
  side->push_back('}');
}

}  // namespace

absl::StatusOr<HandMatch> MatchByHand(absl::string_view task,
                                      absl::string_view node,
                                      const GraphDatabase::Values& target,
                                      const GraphDatabase::Values& reference) {
  if (target.kind != reference.kind) {
    return absl::InvalidArgumentError(
        "a module and a call, or a group of calls, are not a pair");
  }
  HandMatch match;
  if (task == "structure") return match;
  const DumpMode mode = task == "md5" ? DumpMode::kMd5 : DumpMode::kStatistics;
  ParsedValues ours;
  ParsedValues theirs;
  RP_RETURN_IF_ERROR(ours.Parse(target));
  RP_RETURN_IF_ERROR(theirs.Parse(reference));
  constexpr size_t kStates = 5;
  std::array<std::vector<const DumpRow*>, kStates> by_state;
  for (const DumpRow& row : theirs.rows) {
    by_state[static_cast<size_t>(row.state)].push_back(&row);
  }
  // Rows are paired by their index in their section, as in all graphs.
  std::array<size_t, kStates> next{};
  StatSet stats;
  for (size_t i = kUsualStatCount; i < kStatCount; ++i) {
    for (const DumpRow& row : ours.rows) {
      if (!row.stats[i].is_null()) stats.Add(i);
    }
  }
  std::vector<RowPair> pairs(ours.rows.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const size_t state = static_cast<size_t>(ours.rows[i].state);
    pairs[i].target = &ours.rows[i];
    if (next[state] < by_state[state].size()) {
      pairs[i].reference = by_state[state][next[state]++];
    }
    analysis::ComparePair(mode, stats, &pairs[i]);
  }
  analysis::VerdictOptions options;
  options.mode = mode;
  const analysis::Verdict verdict =
      analysis::JudgeEntry(node, options, absl::MakeSpan(pairs));
  match.precision = verdict == analysis::Verdict::kError     ? 1
                    : verdict == analysis::Verdict::kWarning ? 0.5
                                                             : 0;
  match.input = match.output = "{";
  for (const RowPair& pair : pairs) {
    AppendMetrics(
        mode, pair,
        pair.target->state == RowState::kOutput ? &match.output : &match.input);
  }
  match.input.push_back('}');
  match.output.push_back('}');
  return match;
}

}  // namespace rankprobe
