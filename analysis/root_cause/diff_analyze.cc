// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/diff_analyze.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

// msprobe's threshold for all four statistics.
constexpr double kFarOff = 0.5;

// Random states that the operation returns in addition to its result.
bool IsIgnored(const RowPair& pair) {
  const absl::string_view name = pair.target->name;
  return absl::StrContains(name, ".npu_fusion_attention.") &&
         (absl::EndsWith(name, ".output.4") ||
          absl::EndsWith(name, ".output.5"));
}

void AddRowJson(const RowPair& pair, DumpMode mode, std::string* out) {
  out->append("{\"NPU Name\": ");
  AppendJsonString(pair.target->name, out);
  out->append(", \"Bench Name\": ");
  AppendJsonString(pair.reference == nullptr ? absl::string_view("N/A")
                                             : pair.reference->name,
                   out);
  if (mode == DumpMode::kMd5) {
    out->append(", \"NPU MD5\": ");
    AppendJsonString(pair.target->md5, out);
    out->append(", \"BENCH MD5\": ");
    AppendJsonString(
        pair.reference == nullptr ? absl::string_view() : pair.reference->md5,
        out);
  } else {
    for (size_t i = 0; i < kStatCount; ++i) {
      if (i >= kUsualStatCount &&
          pair.stats[i].kind == StatDiff::Kind::kNotCompared) {
        continue;
      }
      absl::StrAppend(out, ", \"", kStatInfo[i].relative, "\": ");
      AppendJsonString(RelativeText(pair.stats[i]), out);
    }
  }
  absl::StrAppend(out, ", \"Result\": \"", VerdictName(pair.verdict),
                  "\", \"Err_message\": ", pair.MessagesText(), "}");
}

}  // namespace

bool IsFarOff(const RowPair& pair, DumpMode mode) {
  if (pair.reference == nullptr || IsIgnored(pair)) return false;
  if (mode == DumpMode::kMd5) return pair.target->md5 != pair.reference->md5;
  // Only the usual statistics: a count of few elements soon differs by much.
  for (size_t i = 0; i < kUsualStatCount; ++i) {
    const StatDiff& diff = pair.stats[i];
    // msprobe reads percentages and skips "Nan" and "inf"; here a NaN on one
    // side is the largest possible difference.
    if (diff.Ratio().value_or(0) > kFarOff || diff.kind == StatDiff::Kind::kNan)
      return true;
  }
  return false;
}

void DiffAnalyzer::BeginRank(int64_t rank, const DumpReader* target) {
  RankStates& states = ranks_.emplace_back();
  states.rank = rank;
  states.dump = target;
  rank_json_ = "{";
}

absl::Status DiffAnalyzer::AddEntry(const EntryComparison& entry,
                                    size_t index) {
  RankStates& states = ranks_.back();
  const DumpMode mode = states.dump->mode();
  NodeState node;
  node.entry = index;
  node.communication = IsCommunication(entry.entry());
  if (node.communication) {
    // The rows do not contain groups and peers; the record does.
    RP_RETURN_IF_ERROR(states.dump->Read(index, &record_));
    links_.Add(states.rank, entry.entry(), record_.root());
  }
  std::string rows;
  for (const RowPair& pair : entry.pairs()) {
    const bool far = IsFarOff(pair, mode);
    if (pair.target->state == RowState::kOutput) {
      node.bad_output = node.bad_output || far;
    } else {
      node.bad_input = node.bad_input || far;
    }
    if (!rows.empty()) rows.append(", ");
    AddRowJson(pair, mode, &rows);
  }
  states.nodes.push_back(node);
  if (rank_json_.size() > 1) rank_json_.append(",\n ");
  AppendJsonString(entry.entry(), &rank_json_);
  absl::StrAppend(&rank_json_,
                  ": {\"is_same\": ", node.bad_output ? "false" : "true",
                  ", \"op_items\": [", rows, "]}");
  return absl::OkStatus();
}

std::string DiffAnalyzer::RankJson() const {
  return absl::StrCat(rank_json_, "}\n");
}

absl::StatusOr<std::string> DiffAnalyzer::FirstJson() {
  links_.Match();
  std::string out;
  int64_t last = -1;
  // The nodes are ordered by rank, so each rank is one key.
  for (const FoundNode& node : FindFirstNodes(ranks_, links_)) {
    const DumpReader* dump = nullptr;
    for (const RankStates& rank : ranks_) {
      if (rank.rank == node.rank) dump = rank.dump;
    }
    if (dump == nullptr) continue;
    if (out.empty()) out = "{";
    if (node.rank != last) {
      absl::StrAppend(&out, last < 0 ? "\n" : "\n ],\n", " \"rank_", node.rank,
                      "\": [\n  ");
    } else {
      out.append(",\n  ");
    }
    last = node.rank;
    RP_ASSIGN_OR_RETURN(const std::string text,
                        DescribeNode(*dump, node.entry, 2));
    out.append(text);
  }
  if (!out.empty()) out.append("\n ]\n}\n");
  return out;
}

}  // namespace rankprobe::analysis
