// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/graph_writer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/comm_links.h"
#include "analysis/calls/node_rows.h"
#include "analysis/calls/overflow_levels.h"
#include "analysis/compare/entry_match.h"
#include "analysis/compare/verdict.h"
#include "analysis/graph_view/graph_rows.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {
namespace {

constexpr char kMissingStack[] =
    "This backward node cannot find the forward node and cannot retrieve stack "
    "information.";

template <typename Strings>
std::string JsonList(const Strings& strings) {
  std::string out = "[";
  for (const auto& text : strings) {
    if (out.size() > 1) out.append(", ");
    AppendJsonString(text, &out);
  }
  out.push_back(']');
  return out;
}

// Whether the operation's output is not defined by its input.
bool HasNoDefinedOutput(absl::string_view id) {
  static const auto* const kOps = new std::set<absl::string_view>{
      "empty",     "empty_like",        "empty_with_format",
      "new_empty", "new_empty_strided", "empty_strided"};
  return kOps->contains(OpOfEntry(id));
}

double PrecisionIndex(Verdict verdict) {
  return verdict == Verdict::kError     ? 1
         : verdict == Verdict::kWarning ? 0.5
                                        : 0;
}

// The mark of a node that communication links show: its colour or overflow
// level.
using Marks = std::map<std::pair<int64_t, std::string>, std::string>;

class Writer final : public GraphWriter {
 public:
  Writer(FileSystem* file_system, const VisualizeOptions& options, VisDb* db,
         VisualizeResult* result)
      : file_system_(file_system),
        options_(options),
        db_(db),
        result_(result) {}

  // `reference` is null in a build and for the reference side itself.
  absl::Status Write(const GraphSide& side, const GraphSide* other,
                     bool judge) override {
    graph_id_ =
        absl::StrCat(side.source, "_", side.place.step, "_", side.place.rank);
    stack_ids_.clear();
    by_stack_.clear();
    precision_.assign(side.graph.nodes().size(), std::nullopt);
    levels_.assign(side.graph.nodes().size(), "");
    int64_t order = 0;
    for (const int32_t node : side.graph.PostOrder()) {
      RP_RETURN_IF_ERROR(WriteNode(side, other, judge, node, order++));
    }
    result_->nodes += order;
    if (!options_.target_layout.has_value()) AddCommunication(side);
    for (const auto& [text, id] : stack_ids_) {
      RP_RETURN_IF_ERROR(db_->AddStack(id, text));
    }
    return absl::OkStatus();
  }

  // Called after all ranks of a step.
  absl::Status LinkCommunication(int64_t step) override {
    for (auto& entry : links_) {
      const std::string& source = entry.first;
      CommLinks& links = entry.second;
      links.Match();
      const Marks& marks = marks_[source];
      absl::Status status;
      links.ForEach([&](int64_t rank, const std::string& node,
                        const std::vector<CommLink>& found) {
        if (!status.ok()) return;
        status = db_->SetDistributed(
            absl::StrCat(source, "_", step, "_", rank, "_", node),
            LinksJson(node, found, marks));
      });
      RP_RETURN_IF_ERROR(status);
    }
    links_.clear();
    marks_.clear();
    return absl::OkStatus();
  }

 private:
  absl::Status WriteNode(const GraphSide& side, const GraphSide* other,
                         bool judge, int32_t index, int64_t order) {
    const GraphNode& node = side.graph.nodes()[static_cast<size_t>(index)];
    VisNode out;
    out.id = absl::StrCat(graph_id_, "_", node.id);
    out.graph_id = graph_id_;
    out.order = order;
    out.name = node.id;
    out.kind = static_cast<int>(node.kind);
    if (node.parent >= 0) {
      out.parent = side.graph.nodes()[static_cast<size_t>(node.parent)].id;
    }
    if (!node.children.empty()) {
      std::vector<absl::string_view> names;
      for (const int32_t child : node.children) {
        names.push_back(side.graph.nodes()[static_cast<size_t>(child)].id);
      }
      out.children = JsonList(names);
    }
    out.micro_step = node.micro_step.value_or(0);
    out.matched_link = MatchedLink(node, other);
    out.stack_id = StackIdOf(side, node);
    out.source = std::string(side.source);
    out.data_dir = side.dump->data_dir();
    if (node.merged != nullptr && !node.merged->notes.empty()) {
      out.merge_info = JsonList(node.merged->notes);
    }
    out.step = side.place.step;
    out.rank = side.place.rank;
    out.input = out.output = "{}";
    RP_RETURN_IF_ERROR(FillValues(side, judge ? other : nullptr, index, &out));
    if (judge && node.kind == NodeKind::kCollection) {
      double worst = 0;
      for (const int32_t child : node.children) {
        worst =
            std::max(worst, precision_[static_cast<size_t>(child)].value_or(0));
      }
      precision_[static_cast<size_t>(index)] = worst;
    }
    out.precision_index = precision_[static_cast<size_t>(index)];
    if (judge) Count(node, out.precision_index);
    return db_->AddNode(std::move(out));
  }

  void Count(const GraphNode& node, std::optional<double> precision) {
    if (node.match < 0) ++result_->unmatched;
    if (node.kind == NodeKind::kCollection || !precision.has_value()) return;
    if (*precision == 1) ++result_->error;
    if (*precision == 0.5) ++result_->warning;
  }

  static std::string MatchedLink(const GraphNode& node,
                                 const GraphSide* other) {
    if (other == nullptr || node.match < 0) return "[]";
    std::vector<absl::string_view> link = other->graph.Ancestors(node.match);
    link.push_back(other->graph.nodes()[static_cast<size_t>(node.match)].id);
    return JsonList(link);
  }

  // Nodes with equal stacks share one row of tb_stack.
  std::string StackIdOf(const GraphSide& side, const GraphNode& node) {
    const int64_t key = node.stack.has_value()
                            ? (int64_t{node.dump} << 32) + *node.stack
                            : (node.stack_missing ? -2 : -1);
    const auto known = by_stack_.find(key);
    if (known != by_stack_.end()) return known->second;
    std::string text = "[]";
    if (node.stack.has_value()) {
      const DumpReader& dump = *(*side.dumps)[static_cast<size_t>(node.dump)];
      text = JsonList(dump.stacks()[*node.stack]);
    } else if (node.stack_missing) {
      text = JsonList(std::vector<std::string>{kMissingStack});
    }
    const auto [it, is_new] = stack_ids_.try_emplace(
        text, absl::StrCat(graph_id_, "_", stack_ids_.size()));
    by_stack_[key] = it->second;
    return it->second;
  }

  absl::Status FillValues(const GraphSide& side, const GraphSide* other,
                          int32_t index, VisNode* out) {
    const GraphNode& node = side.graph.nodes()[static_cast<size_t>(index)];
    if (!node.entry.has_value() && node.merged == nullptr) {
      return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(ReadNodeRows(*side.dumps, node, &records_, &rows_));
    if (options_.overflow_check && node.entry.has_value()) {
      const DumpReader& dump = *(*side.dumps)[static_cast<size_t>(node.dump)];
      const JsonDocument* record = &records_.own;
      if (node.merged != nullptr) {
        RP_RETURN_IF_ERROR(dump.Read(*node.entry, &record_));
        record = &record_;
      }
      // A merged node's name may differ from the call's name in its dump and in
      // the dump's notes.
      const absl::string_view level =
          OverflowLevel(dump.name(*node.entry), record->root(), dump.notes());
      levels_[static_cast<size_t>(index)] = level;
      out->overflow_level = std::string(level);
    }
    pairs_.clear();
    const GraphNode* partner =
        other == nullptr || node.match < 0
            ? nullptr
            : &other->graph.nodes()[static_cast<size_t>(node.match)];
    const DumpMode mode = side.dump->mode();
    if (partner != nullptr && !rows_.empty() && mode != DumpMode::kStructure) {
      RP_RETURN_IF_ERROR(JudgeNode(side, *other, node, *partner, index));
    }
    RowTexts texts = RowsAsJson(
        node.id, rows_, mode,
        !options_.reference.empty() && mode == DumpMode::kMd5, pairs_);
    out->input = std::move(texts.input);
    out->output = std::move(texts.output);
    return absl::OkStatus();
  }

  // Pairs rows by their index in their section.
  absl::Status JudgeNode(const GraphSide& side, const GraphSide& other,
                         const GraphNode& node, const GraphNode& partner,
                         int32_t index) {
    RP_RETURN_IF_ERROR(
        ReadNodeRows(*other.dumps, partner, &partner_records_, &partner_rows_));
    constexpr size_t kStates = 5;
    std::array<std::vector<const DumpRow*>, kStates> by_state;
    for (const DumpRow& row : partner_rows_) {
      by_state[static_cast<size_t>(row.state)].push_back(&row);
    }
    std::array<size_t, kStates> next{};
    pairs_.resize(rows_.size());
    bool any = false;
    for (size_t i = 0; i < rows_.size(); ++i) {
      RowPair& pair = pairs_[i];
      pair = RowPair();
      pair.target = &rows_[i];
      const size_t state = static_cast<size_t>(rows_[i].state);
      if (next[state] < by_state[state].size()) {
        pair.reference = by_state[state][next[state]++];
        any = true;
      }
      ComparePair(side.dump->mode(), side.dump->stats() | other.dump->stats(),
                  &pair);
      if (side.dump->mode() == DumpMode::kTensor) {
        RP_RETURN_IF_ERROR(
            CompareRowData(file_system_, *side.dump, *other.dump, &pair));
      }
    }
    VerdictOptions verdict_options;
    verdict_options.mode = side.dump->mode();
    verdict_options.merged = options_.target_layout.has_value();
    Verdict verdict =
        JudgeEntry(node.id, verdict_options, absl::MakeSpan(pairs_));
    if (!any) {
      // Rows without a partner were not compared, so they do not pass.
      for (RowPair& pair : pairs_) {
        if (!pair.messages.empty()) continue;
        pair.verdict = Verdict::kWarning;
        pair.messages.emplace_back("warning: No bench data matched.");
      }
      verdict = std::max(verdict, Verdict::kWarning);
    }
    if (options_.tensor_log && verdict_options.mode == DumpMode::kTensor) {
      for (const RowPair& pair : pairs_) options_.tensor_log(LogLine(pair));
    }
    precision_[static_cast<size_t>(index)] =
        HasNoDefinedOutput(node.id) ? 0 : PrecisionIndex(verdict);
    return absl::OkStatus();
  }

  // Returns the line in the format of msprobe's log, with the verdict.
  static std::string LogLine(const RowPair& pair) {
    std::string line =
        absl::StrCat("[", pair.target->name, "] Compare result: ");
    if (pair.reference != nullptr) {
      for (size_t i = 0; i < kTensorMetricCount; ++i) {
        absl::StrAppend(&line, kTensorMetricNames[i], " ",
                        FormatMetric(pair.tensor, i), ", ");
      }
    }
    absl::StrAppend(&line, VerdictName(pair.verdict));
    for (const std::string& message : pair.messages) {
      absl::StrAppend(&line, ", ", message);
    }
    return line;
  }

  void AddCommunication(const GraphSide& side) {
    CommLinks& links = links_[std::string(side.source)];
    Marks& marks = marks_[std::string(side.source)];
    for (size_t i = 0; i < side.dump->size(); ++i) {
      const absl::string_view name = side.dump->name(i);
      if (!IsCommunication(name)) continue;
      const int32_t node = side.graph.Find(name);
      if (node < 0 || !side.dump->Read(i, &record_).ok()) continue;
      links.Add(side.place.rank, name, record_.root());
      std::string mark = "Nan";
      if (options_.overflow_check) {
        const absl::string_view level = levels_[static_cast<size_t>(node)];
        if (!level.empty()) mark = std::string(level);
      } else if (const auto& precision = precision_[static_cast<size_t>(node)];
                 precision.has_value()) {
        mark = absl::StrCat(*precision);
      }
      marks[{side.place.rank, std::string(name)}] = mark;
    }
  }

  static std::string LinkJson(const CommLink& link, const Marks& marks) {
    std::string out =
        absl::StrCat("{\"communications_type\": \"", CommKindName(link.kind),
                     "\", \"nodes_info\": {");
    bool first = true;
    for (const CommPeer& peer : link.peers) {
      const auto mark = marks.find({peer.rank, peer.node});
      absl::StrAppend(&out, first ? "" : ", ", "\"", peer.rank, "\": [\"",
                      mark == marks.end() ? "Nan" : mark->second, "\", ");
      AppendJsonString(peer.node, &out);
      out.push_back(']');
      first = false;
    }
    out.append("}}");
    return out;
  }

  static std::string LinksJson(const std::string& node,
                               const std::vector<CommLink>& links,
                               const Marks& marks) {
    if (links.size() == 1 && !absl::StrContains(node, "batch_isend_irecv")) {
      return LinkJson(links[0], marks);
    }
    std::string out = "[";
    for (const CommLink& link : links) {
      if (out.size() > 1) out.append(", ");
      out.append(LinkJson(link, marks));
    }
    out.push_back(']');
    return out;
  }

  FileSystem* const file_system_;
  const VisualizeOptions& options_;
  VisDb* const db_;
  VisualizeResult* const result_;
  std::string graph_id_;
  // Ids of stacks by their text, and by the reader's number.
  std::map<std::string, std::string> stack_ids_;
  absl::flat_hash_map<int64_t, std::string> by_stack_;
  std::vector<std::optional<double>> precision_;
  std::vector<absl::string_view> levels_;
  JsonDocument record_;
  NodeRecords records_;
  NodeRecords partner_records_;
  std::vector<DumpRow> rows_;
  std::vector<DumpRow> partner_rows_;
  std::vector<RowPair> pairs_;
  std::map<std::string, CommLinks> links_;
  std::map<std::string, Marks> marks_;
};

}  // namespace

std::unique_ptr<GraphWriter> NewGraphWriter(FileSystem* file_system,
                                            const VisualizeOptions& options,
                                            VisDb* db,
                                            VisualizeResult* result) {
  return std::make_unique<Writer>(file_system, options, db, result);
}

}  // namespace rankprobe::analysis
