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
#include "analysis/merge.h"
#include "analysis/node_rows.h"
#include "analysis/overflow_levels.h"
#include "analysis/vis_db.h"
#include "analysis/vis_texts.h"
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

using Dumps = std::vector<std::unique_ptr<DumpReader>>;

// One graph with the dump it came from, or the dumps of the ranks that were
// merged into it.
struct Side {
  DumpPlace place;
  std::shared_ptr<const Dumps> dumps;
  const DumpReader* dump = nullptr;  // the first
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
    if (!options_.target_layout.has_value()) AddCommunication(side);
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

  static std::string MatchedLink(const GraphNode& node, const Side* other) {
    if (other == nullptr || node.match < 0) return "[]";
    std::vector<absl::string_view> link = other->graph.Ancestors(node.match);
    link.push_back(other->graph.nodes()[static_cast<size_t>(node.match)].id);
    return JsonList(link);
  }

  // Nodes with equal stacks share one row of tb_stack.
  std::string StackIdOf(const Side& side, const GraphNode& node) {
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

  absl::Status FillValues(const Side& side, const Side* other, int32_t index,
                          VisNode* out) {
    const GraphNode& node = side.graph.nodes()[static_cast<size_t>(index)];
    if (!node.entry.has_value() && node.merged == nullptr) {
      return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(ReadNodeRows(*side.dumps, node, &records_, &rows_));
    if (options_.overflow_check && node.entry.has_value()) {
      const JsonDocument* record = &records_.own;
      if (node.merged != nullptr) {
        RP_RETURN_IF_ERROR((*side.dumps)[static_cast<size_t>(node.dump)]->Read(
            *node.entry, &record_));
        record = &record_;
      }
      levels_[static_cast<size_t>(index)] =
          OverflowLevel(node.id, record->root());
      out->overflow_level = std::string(levels_[static_cast<size_t>(index)]);
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
    RP_RETURN_IF_ERROR(
        ReadNodeRows(*other.dumps, partner, &partner_records_, &partner_rows_));
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
    verdict_options.merged = options_.target_layout.has_value();
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
  NodeRecords records_;
  NodeRecords partner_records_;
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
  auto dumps = std::make_shared<Dumps>(1);
  RP_ASSIGN_OR_RETURN((*dumps)[0],
                      DumpReader::Open(file_system, place.directory, open));
  side.dump = (*dumps)[0].get();
  side.dumps = std::move(dumps);
  RP_ASSIGN_OR_RETURN(side.graph, Graph::Build(*side.dump));
  return side;
}

// One side for each graph that the ranks of a step merge into.
absl::StatusOr<std::vector<Side>> OpenMerged(FileSystem* file_system,
                                             const ParallelLayout& layout,
                                             const std::vector<DumpPlace>& step,
                                             absl::string_view source,
                                             int64_t* micro_steps) {
  DumpReader::Options open;
  open.construct = true;
  std::vector<std::pair<int64_t, std::unique_ptr<DumpReader>>> ranks;
  for (const DumpPlace& place : step) {
    RP_ASSIGN_OR_RETURN(auto dump,
                        DumpReader::Open(file_system, place.directory, open));
    ranks.emplace_back(place.rank, std::move(dump));
  }
  RP_ASSIGN_OR_RETURN(MergedGraphs merged,
                      MergeRanks(layout, std::move(ranks)));
  const auto dumps = std::make_shared<const Dumps>(std::move(merged.dumps));
  std::vector<Side> sides;
  for (MergedGraph& graph : merged.graphs) {
    Side& side = sides.emplace_back();
    side.place = step[static_cast<size_t>(graph.rank)];
    side.dumps = dumps;
    side.dump = (*dumps)[static_cast<size_t>(graph.rank)].get();
    side.graph = std::move(graph.graph);
    side.source = source;
    *micro_steps = std::max(*micro_steps, graph.micro_steps);
  }
  return sides;
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
    if (options_.target_layout.has_value()) return RunMerged(target, path);
    RP_RETURN_IF_ERROR(FindPairs(target));
    std::set<int64_t> steps;
    std::set<int64_t> ranks;
    for (const auto& [n, b] : pairs_) {
      steps.insert(n.step);
      ranks.insert(n.rank);
    }
    RP_RETURN_IF_ERROR(ReadRules());
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
    return Finish(steps, ranks);
  }

 private:
  absl::Status ReadRules() {
    if (options_.layer_mapping.empty() || options_.layer_mapping == "auto") {
      return absl::OkStatus();
    }
    absl::StatusOr<LayerRules> rules = ReadLayerRules(options_.layer_mapping);
    RP_RETURN_IF_ERROR(rules.status());
    rules_ = *std::move(rules);
    return absl::OkStatus();
  }

  absl::StatusOr<VisualizeResult> Finish(const std::set<int64_t>& steps,
                                         const std::set<int64_t>& ranks) {
    config_.overflow_check = options_.overflow_check;
    config_.ranks = JsonNumbers({ranks.begin(), ranks.end()});
    config_.steps = JsonNumbers({steps.begin(), steps.end()});
    RP_RETURN_IF_ERROR(db_->SetConfig(config_));
    RP_RETURN_IF_ERROR(db_->Finish());
    return result_;
  }

  // The ranks of each step, 0, 1, .. as the layout says.
  static absl::StatusOr<std::map<int64_t, std::vector<DumpPlace>>> PlacesOf(
      const DumpLayout& dump, const ParallelLayout& layout) {
    RP_RETURN_IF_ERROR(CheckLayout(layout, dump.path));
    std::map<int64_t, std::vector<DumpPlace>> steps;
    for (const DumpPlace& place : dump.places) {
      steps[place.step].push_back(place);
    }
    for (const auto& [step, places] : steps) {
      bool whole = static_cast<int64_t>(places.size()) == layout.ranks;
      for (size_t i = 0; whole && i < places.size(); ++i) {
        whole = places[i].rank == static_cast<int64_t>(i);
      }
      if (whole) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(dump.path, ": --rank_size ", layout.ranks,
                       " needs rank0 to rank", layout.ranks - 1, "; step ",
                       step, " has ", places.size(), " directories of ranks"));
    }
    return steps;
  }

  absl::StatusOr<VisualizeResult> RunMerged(const DumpLayout& target,
                                            const std::string& path) {
    RP_ASSIGN_OR_RETURN(const auto steps,
                        PlacesOf(target, *options_.target_layout));
    std::map<int64_t, std::vector<DumpPlace>> golden_steps;
    config_.compare = !options_.golden.empty();
    if (config_.compare) {
      RP_ASSIGN_OR_RETURN(const DumpLayout golden,
                          FindDumps(file_system_, options_.golden));
      if ((golden.kind == DumpLayout::Kind::kSteps) !=
          (target.kind == DumpLayout::Kind::kSteps)) {
        return absl::InvalidArgumentError(
            absl::StrCat(target.path, " and ", golden.path,
                         ": only one of them is a directory of steps"));
      }
      RP_ASSIGN_OR_RETURN(golden_steps,
                          PlacesOf(golden, *options_.golden_layout));
      if (golden.kind != DumpLayout::Kind::kSteps) {
        auto only = golden_steps.extract(golden_steps.begin());
        only.key() = steps.begin()->first;
        golden_steps.insert(std::move(only));
      }
    } else {
      config_.node_colors = "null";
    }
    RP_RETURN_IF_ERROR(ReadRules());
    RP_ASSIGN_OR_RETURN(db_, VisDb::Create(file_system_, path));
    Writer writer(file_system_, options_, db_.get(), &result_);
    std::set<int64_t> done;
    std::set<int64_t> ranks;
    size_t number = 0;
    for (const auto& [step, places] : steps) {
      const auto golden = golden_steps.find(step);
      if (config_.compare && golden == golden_steps.end()) {
        result_.unpaired.push_back(absl::StrCat(target.path, " step ", step));
        continue;
      }
      RP_RETURN_IF_ERROR(
          WriteMerged(places, config_.compare ? &golden->second : nullptr,
                      &writer, &ranks));
      done.insert(step);
      if (progress_) progress_(++number, steps.size());
    }
    if (done.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path, " and ", options_.golden, ": no step is in both"));
    }
    return Finish(done, ranks);
  }

  absl::Status WriteMerged(const std::vector<DumpPlace>& places,
                           const std::vector<DumpPlace>* golden_places,
                           Writer* writer, std::set<int64_t>* ranks) {
    RP_ASSIGN_OR_RETURN(std::vector<Side> targets,
                        OpenMerged(file_system_, *options_.target_layout,
                                   places, "NPU", &config_.micro_steps));
    if (golden_places == nullptr) {
      for (const Side& side : targets) {
        ranks->insert(side.place.rank);
        RP_RETURN_IF_ERROR(writer->Write(side, nullptr, false));
      }
      return absl::OkStatus();
    }
    int64_t ignored = 1;
    RP_ASSIGN_OR_RETURN(std::vector<Side> goldens,
                        OpenMerged(file_system_, *options_.golden_layout,
                                   *golden_places, "Bench", &ignored));
    if (targets.size() != goldens.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.target, " and ", options_.golden,
                       ": their data parallel sizes differ (", targets.size(),
                       ", ", goldens.size(), ")"));
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      // The view pairs graphs by rank and step.
      goldens[i].place.rank = targets[i].place.rank;
      ranks->insert(targets[i].place.rank);
      RP_RETURN_IF_ERROR(
          WriteCompared(&targets[i], &goldens[i], /*fuzzy=*/true, writer));
    }
    return absl::OkStatus();
  }

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
    return WriteCompared(&target, &golden, options_.fuzzy, writer);
  }

  absl::Status WriteCompared(Side* target_side, Side* golden_side, bool fuzzy,
                             Writer* writer) {
    Side& target = *target_side;
    Side& golden = *golden_side;
    golden.place.step = target.place.step;
    RP_RETURN_IF_ERROR(CheckComparable(*target.dump, *golden.dump));
    config_.task = std::string(DumpModeName(target.dump->mode()));
    config_.tool_tip = ToolTip(target.dump->mode());
    config_.node_colors = NodeColors(target.dump->mode());
    if (!options_.layer_mapping.empty()) {
      MatchMapped(MapLayers(rules_, *target.dump, *golden.dump), &target.graph,
                  &golden.graph);
    } else if (fuzzy) {
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
