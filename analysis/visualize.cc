#include "analysis/visualize.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/comm_links.h"
#include "analysis/dump_layout.h"
#include "analysis/graph.h"
#include "analysis/graph_match.h"
#include "analysis/graph_rows.h"
#include "analysis/layer_mapping.h"
#include "analysis/overflow_levels.h"
#include "analysis/vis_db.h"
#include "common/json_text.h"
#include "common/names.h"
#include "common/status_macros.h"

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

std::string JsonNumbers(const std::vector<int64_t>& numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

std::string NodeColors(DumpMode mode) {
  if (mode == DumpMode::kStructure) {
    return R"({"#C7C7C7": {"value": [], )"
           R"("description": "No node of the other side matches", )"
           R"("accuracy_level": "unmatched node"}})";
  }
  constexpr char kText[] =
      "Error of the inputs and outputs of this node; the redder, the further "
      "the target is from the benchmark";
  return absl::StrCat(
      R"({"#FFFCF3": {"value": [0, 0.3], "description": ")", kText,
      R"(", "accuracy_level": "pass"}, "#FFDC7F": {"value": [0.3, 0.6], )",
      R"("description": ")", kText,
      R"(", "accuracy_level": "warning"}, "#FF704D": {"value": [0.6, 1], )",
      R"("description": ")", kText,
      R"(", "accuracy_level": "error"}, "#C7C7C7": {"value": [], )",
      R"("description": "No node of the other side matches", )",
      R"("accuracy_level": "unmatched node"}})");
}

std::string ToolTip(DumpMode mode) {
  if (mode == DumpMode::kMd5) {
    return R"({"md5": "CRC-32 of the data: equal data has equal checksums"})";
  }
  if (mode == DumpMode::kStatistics) {
    return R"({"Max diff": "target maximum less the benchmark's", )"
           R"("Min diff": "target minimum less the benchmark's", )"
           R"("Mean diff": "target mean less the benchmark's", )"
           R"("L2norm diff": "target L2 norm less the benchmark's"})";
  }
  return R"({"One Thousandth Err Ratio": )"
         R"("share of elements with a relative error below 1/1000", )"
         R"("Five Thousandths Err Ratio": )"
         R"("share of elements with a relative error below 5/1000", )"
         R"("EucDist": "length of the difference of the two tensors", )"
         R"("Cosine": "cosine of the angle between the two tensors", )"
         R"("MaxAbsErr": "largest absolute difference", )"
         R"("MaxRelativeErr": "largest relative difference"})";
}

// The op decides: what it returns is not defined by what it was given.
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

// One graph with the dump it came from.
struct Side {
  DumpPlace place;
  std::unique_ptr<DumpReader> dump;
  Graph graph;
  absl::string_view source;  // "NPU" or "Bench"
};

// What communication links show of a node: its colour or overflow level.
using Marks = std::map<std::pair<int64_t, std::string>, std::string>;

class Writer {
 public:
  Writer(FileSystem* file_system, const VisualizeOptions& options, VisDb* db,
         VisualizeResult* result)
      : file_system_(file_system),
        options_(options),
        db_(db),
        result_(result) {}

  // `golden` is null in a build and for the golden side itself.
  absl::Status Write(const Side& side, const Side* other, bool judge) {
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
    AddCommunication(side);
    for (const auto& [text, id] : stack_ids_) {
      RP_RETURN_IF_ERROR(db_->AddStack(id, text));
    }
    return absl::OkStatus();
  }

  // After all ranks of a step.
  absl::Status LinkCommunication(int64_t step) {
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
  absl::Status WriteNode(const Side& side, const Side* other, bool judge,
                         int32_t index, int64_t order) {
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
    out.source = side.source;
    out.data_dir = side.dump->data_dir();
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
    return db_->AddNode(out);
  }

  void Count(const GraphNode& node, std::optional<double> precision) {
    if (node.match < 0) ++result_->unmatched;
    if (node.kind == NodeKind::kCollection || !precision.has_value()) return;
    if (*precision == 1) ++result_->error;
    if (*precision == 0.5) ++result_->warning;
  }

  static std::string MatchedLink(const GraphNode& node, const Side* other) {
    if (other == nullptr || node.match < 0) return "[]";
    std::vector<absl::string_view> link = other->graph.Ancestors(node.match);
    link.push_back(other->graph.nodes()[static_cast<size_t>(node.match)].id);
    return JsonList(link);
  }

  // Nodes with equal stacks share one row of tb_stack.
  std::string StackIdOf(const Side& side, const GraphNode& node) {
    const int64_t key = node.stack.has_value()
                            ? static_cast<int64_t>(*node.stack)
                            : (node.stack_missing ? -2 : -1);
    const auto known = by_stack_.find(key);
    if (known != by_stack_.end()) return known->second;
    std::string text = "[]";
    if (node.stack.has_value()) {
      text = JsonList(side.dump->stacks()[*node.stack]);
    } else if (node.stack_missing) {
      text = JsonList(std::vector<std::string>{kMissingStack});
    }
    const auto [it, is_new] = stack_ids_.try_emplace(
        text, absl::StrCat(graph_id_, "_", stack_ids_.size()));
    by_stack_[key] = it->second;
    return it->second;
  }

  absl::Status FillValues(const Side& side, const Side* other, int32_t index,
                          VisNode* out) {
    const GraphNode& node = side.graph.nodes()[static_cast<size_t>(index)];
    if (!node.entry.has_value()) return absl::OkStatus();
    RP_RETURN_IF_ERROR(side.dump->Read(*node.entry, &record_));
    RP_RETURN_IF_ERROR(ReadRowsInRecordOrder(node.id, &record_, &rows_));
    if (options_.overflow_check) {
      out->overflow_level = OverflowLevel(node.id, record_.root());
      levels_[static_cast<size_t>(index)] = out->overflow_level;
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
    RowTexts texts =
        RowsAsJson(node.id, rows_, mode,
                   !options_.golden.empty() && mode == DumpMode::kMd5, pairs_);
    out->input = std::move(texts.input);
    out->output = std::move(texts.output);
    return absl::OkStatus();
  }

  // Rows pair by their place in their section.
  absl::Status JudgeNode(const Side& side, const Side& other,
                         const GraphNode& node, const GraphNode& partner,
                         int32_t index) {
    partner_rows_.clear();
    if (partner.entry.has_value()) {
      RP_RETURN_IF_ERROR(other.dump->Read(*partner.entry, &partner_record_));
      RP_RETURN_IF_ERROR(
          ReadRowsInRecordOrder(partner.id, &partner_record_, &partner_rows_));
    }
    constexpr size_t kStates = 5;
    std::array<std::vector<const Row*>, kStates> by_state;
    for (const Row& row : partner_rows_) {
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
        pair.benchmark = by_state[state][next[state]++];
        any = true;
      }
      ComparePair(side.dump->mode(), &pair);
      if (side.dump->mode() == DumpMode::kTensor) {
        RP_RETURN_IF_ERROR(
            CompareRowData(file_system_, *side.dump, *other.dump, &pair));
      }
    }
    VerdictOptions verdict_options;
    verdict_options.mode = side.dump->mode();
    Verdict verdict =
        JudgeEntry(node.id, verdict_options, absl::MakeSpan(pairs_));
    if (!any) {
      // Where nothing had a partner nothing was compared: no pass.
      for (RowPair& pair : pairs_) {
        if (!pair.messages.empty()) continue;
        pair.verdict = Verdict::kWarning;
        pair.messages.emplace_back("warning: No bench data matched.");
      }
      verdict = std::max(verdict, Verdict::kWarning);
    }
    precision_[static_cast<size_t>(index)] =
        HasNoDefinedOutput(node.id) ? 0 : PrecisionIndex(verdict);
    return absl::OkStatus();
  }

  void AddCommunication(const Side& side) {
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
  // Text of a stack to its id; and from the reader's number of it.
  std::map<std::string, std::string> stack_ids_;
  absl::flat_hash_map<int64_t, std::string> by_stack_;
  std::vector<std::optional<double>> precision_;
  std::vector<absl::string_view> levels_;
  JsonDocument record_;
  JsonDocument partner_record_;
  std::vector<Row> rows_;
  std::vector<Row> partner_rows_;
  std::vector<RowPair> pairs_;
  std::map<std::string, CommLinks> links_;
  std::map<std::string, Marks> marks_;
};

absl::StatusOr<Side> OpenSide(FileSystem* file_system, const DumpPlace& place,
                              absl::string_view source) {
  DumpReader::Options open;
  open.construct = true;
  Side side;
  side.place = place;
  side.source = source;
  RP_ASSIGN_OR_RETURN(side.dump,
                      DumpReader::Open(file_system, place.directory, open));
  RP_ASSIGN_OR_RETURN(side.graph, Graph::Build(*side.dump));
  return side;
}

class Visualizer {
 public:
  Visualizer(FileSystem* file_system, const VisualizeOptions& options,
             const ProgressFn& progress)
      : file_system_(file_system), options_(options), progress_(progress) {}

  absl::StatusOr<VisualizeResult> Run(const std::string& path) {
    RP_ASSIGN_OR_RETURN(const DumpLayout target,
                        FindDumps(file_system_, options_.target));
    if (target.debug) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path, ": a debug.json has no graph; use compare"));
    }
    RP_RETURN_IF_ERROR(FindPairs(target));
    std::set<int64_t> steps;
    std::set<int64_t> ranks;
    for (const auto& [n, b] : pairs_) {
      steps.insert(n.step);
      ranks.insert(n.rank);
    }
    if (!options_.layer_mapping.empty() && options_.layer_mapping != "auto") {
      absl::StatusOr<LayerRules> rules = ReadLayerRules(options_.layer_mapping);
      RP_RETURN_IF_ERROR(rules.status());
      rules_ = *std::move(rules);
    }
    // All input is opened before any output is made.
    RP_ASSIGN_OR_RETURN(db_, VisDb::Create(file_system_, path));
    Writer writer(file_system_, options_, db_.get(), &result_);
    for (size_t i = 0; i < pairs_.size(); ++i) {
      RP_RETURN_IF_ERROR(WritePair(pairs_[i].first, pairs_[i].second, &writer));
      const bool last_of_step =
          i + 1 == pairs_.size() ||
          pairs_[i + 1].first.step != pairs_[i].first.step;
      if (last_of_step) {
        RP_RETURN_IF_ERROR(writer.LinkCommunication(pairs_[i].first.step));
      }
      if (progress_) progress_(i + 1, pairs_.size());
    }
    config_.overflow_check = options_.overflow_check;
    config_.ranks = JsonNumbers({ranks.begin(), ranks.end()});
    config_.steps = JsonNumbers({steps.begin(), steps.end()});
    RP_RETURN_IF_ERROR(db_->SetConfig(config_));
    RP_RETURN_IF_ERROR(db_->Finish());
    return result_;
  }

 private:
  absl::Status FindPairs(const DumpLayout& target) {
    if (options_.golden.empty()) {
      for (const DumpPlace& place : target.places) {
        pairs_.emplace_back(place, DumpPlace());
      }
      config_.node_colors = "null";
      return absl::OkStatus();
    }
    RP_ASSIGN_OR_RETURN(const DumpLayout golden,
                        FindDumps(file_system_, options_.golden));
    RP_ASSIGN_OR_RETURN(pairs_, PairDumps(target, golden, &result_.unpaired));
    config_.compare = true;
    return absl::OkStatus();
  }

  absl::Status WritePair(const DumpPlace& n, const DumpPlace& b,
                         Writer* writer) {
    RP_ASSIGN_OR_RETURN(Side target, OpenSide(file_system_, n, "NPU"));
    if (!config_.compare) {
      config_.micro_steps =
          std::max(config_.micro_steps, target.graph.AssignMicroSteps(nullptr));
      return writer->Write(target, nullptr, false);
    }
    RP_ASSIGN_OR_RETURN(Side golden, OpenSide(file_system_, b, "Bench"));
    golden.place.step = n.step;
    RP_RETURN_IF_ERROR(CheckComparable(*target.dump, *golden.dump));
    config_.task = std::string(DumpModeName(target.dump->mode()));
    config_.tool_tip = ToolTip(target.dump->mode());
    config_.node_colors = NodeColors(target.dump->mode());
    if (!options_.layer_mapping.empty()) {
      MatchMapped(MapLayers(rules_, *target.dump, *golden.dump), &target.graph,
                  &golden.graph);
    } else if (options_.fuzzy) {
      MatchFuzzyGraphs(&target.graph, &golden.graph);
    } else if (target.dump->framework() != golden.dump->framework()) {
      return absl::InvalidArgumentError(
          absl::StrCat(target.dump->path(), " and ", golden.dump->path(),
                       ": come from different frameworks; give a layer mapping "
                       "(-lm)"));
    } else {
      MatchExact(&target.graph, &golden.graph);
    }
    config_.micro_steps = std::max(
        config_.micro_steps, target.graph.AssignMicroSteps(&golden.graph));
    RP_RETURN_IF_ERROR(writer->Write(target, &golden, true));
    return writer->Write(golden, &target, false);
  }

  FileSystem* const file_system_;
  const VisualizeOptions& options_;
  const ProgressFn& progress_;
  std::vector<std::pair<DumpPlace, DumpPlace>> pairs_;
  LayerRules rules_;
  std::unique_ptr<VisDb> db_;
  VisConfig config_;
  VisualizeResult result_;
};

}  // namespace

absl::StatusOr<VisualizeResult> Visualize(FileSystem* file_system,
                                          const VisualizeOptions& options,
                                          const std::string& path,
                                          const ProgressFn& progress) {
  return Visualizer(file_system, options, progress).Run(path);
}

}  // namespace rankprobe::analysis
