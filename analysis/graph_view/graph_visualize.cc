// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/graph_visualize.h"

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/calls/call_tree.h"
#include "analysis/compare/layer_mapping.h"
#include "analysis/graph_view/graph_db.h"
#include "analysis/graph_view/graph_db_texts.h"
#include "analysis/graph_view/graph_match.h"
#include "analysis/graph_view/graph_writer.h"
#include "analysis/graph_view/merged_dump.h"
#include "analysis/merge/merge.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {
namespace {

std::string JsonNumbers(const std::vector<int64_t>& numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

absl::StatusOr<GraphSide> OpenSide(FileSystem* file_system,
                                   const DumpPlace& place,
                                   absl::string_view source, bool notes) {
  DumpReader::Options open;
  open.construct = true;
  open.notes = notes;
  open.keep_text = true;
  GraphSide side;
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

// Both sides of a rank; in a build only the target.
struct OpenPair {
  GraphSide target;
  std::optional<GraphSide> reference;
};

absl::StatusOr<OpenPair> OpenBoth(FileSystem* file_system, const DumpPlace& n,
                                  const DumpPlace* b, bool notes) {
  OpenPair pair;
  RP_ASSIGN_OR_RETURN(pair.target, OpenSide(file_system, n, "NPU", notes));
  if (b != nullptr) {
    RP_ASSIGN_OR_RETURN(pair.reference,
                        OpenSide(file_system, *b, "Bench", notes));
  }
  return pair;
}

// Opens one side for each graph that the ranks of a step are merged into.
absl::StatusOr<std::vector<GraphSide>> OpenMerged(
    FileSystem* file_system, const ParallelLayout& layout,
    const std::vector<DumpPlace>& step, absl::string_view source, bool notes,
    int64_t* micro_steps) {
  DumpReader::Options open;
  open.construct = true;
  open.notes = notes;
  std::vector<std::pair<int64_t, std::unique_ptr<DumpReader>>> ranks;
  for (const DumpPlace& place : step) {
    RP_ASSIGN_OR_RETURN(auto dump,
                        DumpReader::Open(file_system, place.directory, open));
    ranks.emplace_back(place.rank, std::move(dump));
  }
  RP_ASSIGN_OR_RETURN(MergedGraphs merged,
                      MergeRanks(layout, std::move(ranks)));
  const auto dumps = std::make_shared<const Dumps>(std::move(merged.dumps));
  std::vector<GraphSide> sides;
  for (MergedGraph& graph : merged.graphs) {
    GraphSide& side = sides.emplace_back();
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
    RP_RETURN_IF_ERROR(CheckOptions());
    RP_ASSIGN_OR_RETURN(const DumpLayout target,
                        FindDumps(file_system_, options_.target, options_.job));
    if (!target.note.empty()) result_.warnings.push_back(target.note);
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
    // All input is opened before any output is created.
    RP_ASSIGN_OR_RETURN(db_, VisDb::Create(file_system_, path));
    const std::unique_ptr<GraphWriter> writer =
        NewGraphWriter(file_system_, options_, db_.get(), &result_);
    // A rank is written while the next one is read.
    std::future<absl::StatusOr<OpenPair>> next = StartOpening(0);
    for (size_t i = 0; i < pairs_.size(); ++i) {
      RP_ASSIGN_OR_RETURN(OpenPair pair, next.get());
      RP_RETURN_IF_ERROR(GoOn());
      if (i + 1 < pairs_.size()) next = StartOpening(i + 1);
      RP_RETURN_IF_ERROR(WritePair(&pair, writer.get()));
      const bool last_of_step =
          i + 1 == pairs_.size() ||
          pairs_[i + 1].first.step != pairs_[i].first.step;
      if (last_of_step) {
        RP_RETURN_IF_ERROR(writer->LinkCommunication(pairs_[i].first.step));
      }
      if (progress_) progress_(i + 1, pairs_.size());
    }
    return Finish(steps, ranks);
  }

 private:
  absl::Status GoOn() const {
    return options_.cancelled && options_.cancelled()
               ? absl::CancelledError("the caller has cancelled the graph")
               : absl::OkStatus();
  }
  absl::Status CheckOptions() const {
    const bool compare = !options_.reference.empty();
    if (!compare && !options_.layer_mapping.empty()) {
      return absl::InvalidArgumentError(
          "a layer mapping (-lm) needs a reference dump (-gp)");
    }
    const bool merge = options_.target_layout.has_value();
    if (options_.reference_layout.has_value() != (merge && compare)) {
      return absl::InvalidArgumentError(
          "a parallel layout is needed for each side, or for none");
    }
    if (options_.merged_as_dump && (!merge || compare)) {
      return absl::InvalidArgumentError(
          "a dump can only be made of the merged ranks of one dump");
    }
    return absl::OkStatus();
  }

  absl::Status ReadRules() {
    maps_layers_ = !options_.layer_mapping.empty();
    if (!maps_layers_ || options_.layer_mapping == "auto") {
      return absl::OkStatus();
    }
    RP_ASSIGN_OR_RETURN(std::optional<LayerRules> rules,
                        LoadLayerMapping(file_system_, options_.layer_mapping,
                                         &result_.warnings));
    maps_layers_ = rules.has_value();
    if (maps_layers_) rules_ = *std::move(rules);
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

  // Returns the places of each step's ranks, which must be 0, 1, .. as in the
  // layout.
  static absl::StatusOr<std::map<int64_t, std::vector<DumpPlace>>> PlacesOf(
      const DumpLayout& dump, const ParallelLayout& layout) {
    RP_RETURN_IF_ERROR(CheckLayout(layout, dump.path));
    std::map<int64_t, std::vector<DumpPlace>> steps;
    for (const DumpPlace& place : dump.places) {
      if (place.process) continue;  // not a rank of the layout
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
    std::map<int64_t, std::vector<DumpPlace>> reference_steps;
    config_.compare = !options_.reference.empty();
    if (config_.compare) {
      RP_ASSIGN_OR_RETURN(
          const DumpLayout reference,
          FindDumps(file_system_, options_.reference, options_.reference_job));
      if ((reference.kind == DumpLayout::Kind::kSteps) !=
          (target.kind == DumpLayout::Kind::kSteps)) {
        return absl::InvalidArgumentError(
            absl::StrCat(target.path, " and ", reference.path,
                         ": only one of them is a directory of steps"));
      }
      RP_ASSIGN_OR_RETURN(reference_steps,
                          PlacesOf(reference, *options_.reference_layout));
      if (reference.kind != DumpLayout::Kind::kSteps) {
        auto only = reference_steps.extract(reference_steps.begin());
        only.key() = steps.begin()->first;
        reference_steps.insert(std::move(only));
      }
    } else {
      config_.node_colors = "null";
    }
    RP_RETURN_IF_ERROR(ReadRules());
    MergedDumpWriter dump_writer(file_system_, path, &result_);
    std::unique_ptr<GraphWriter> db_writer;
    if (!options_.merged_as_dump) {
      RP_ASSIGN_OR_RETURN(db_, VisDb::Create(file_system_, path));
      db_writer = NewGraphWriter(file_system_, options_, db_.get(), &result_);
    }
    GraphWriter* const writer =
        options_.merged_as_dump ? &dump_writer : db_writer.get();
    std::set<int64_t> done;
    std::set<int64_t> ranks;
    size_t number = 0;
    for (const auto& [step, places] : steps) {
      RP_RETURN_IF_ERROR(GoOn());
      const auto reference = reference_steps.find(step);
      if (config_.compare && reference == reference_steps.end()) {
        result_.unpaired.push_back(absl::StrCat(target.path, " step ", step));
        continue;
      }
      RP_RETURN_IF_ERROR(
          WriteMerged(places, config_.compare ? &reference->second : nullptr,
                      writer, &ranks));
      done.insert(step);
      if (progress_) progress_(++number, steps.size());
    }
    if (done.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path, " and ", options_.reference, ": no step is in both"));
    }
    if (options_.merged_as_dump) {
      RP_RETURN_IF_ERROR(dump_writer.Finish());
      return result_;
    }
    return Finish(done, ranks);
  }

  absl::Status WriteMerged(const std::vector<DumpPlace>& places,
                           const std::vector<DumpPlace>* reference_places,
                           GraphWriter* writer, std::set<int64_t>* ranks) {
    RP_ASSIGN_OR_RETURN(
        std::vector<GraphSide> targets,
        OpenMerged(file_system_, *options_.target_layout, places, "NPU",
                   options_.overflow_check, &config_.micro_steps));
    if (reference_places == nullptr) {
      for (const GraphSide& side : targets) {
        ranks->insert(side.place.rank);
        RP_RETURN_IF_ERROR(writer->Write(side, nullptr, false));
      }
      return absl::OkStatus();
    }
    int64_t ignored = 1;
    RP_ASSIGN_OR_RETURN(
        std::vector<GraphSide> references,
        OpenMerged(file_system_, *options_.reference_layout, *reference_places,
                   "Bench", options_.overflow_check, &ignored));
    if (targets.size() != references.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.target, " and ", options_.reference,
                       ": their data parallel sizes differ (", targets.size(),
                       ", ", references.size(), ")"));
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      // The view pairs graphs by rank and step.
      references[i].place.rank = targets[i].place.rank;
      ranks->insert(targets[i].place.rank);
      RP_RETURN_IF_ERROR(
          WriteCompared(&targets[i], &references[i], /*fuzzy=*/true, writer));
    }
    return absl::OkStatus();
  }

  absl::Status FindPairs(const DumpLayout& target) {
    if (options_.reference.empty()) {
      for (const DumpPlace& place : target.places) {
        pairs_.emplace_back(place, DumpPlace());
      }
      config_.node_colors = "null";
      return absl::OkStatus();
    }
    RP_ASSIGN_OR_RETURN(
        const DumpLayout reference,
        FindDumps(file_system_, options_.reference, options_.reference_job));
    RP_ASSIGN_OR_RETURN(pairs_,
                        PairDumps(target, reference, &result_.unpaired));
    if (!reference.note.empty()) result_.warnings.push_back(reference.note);
    if (!result_.unpaired.empty())
      result_.warnings.push_back(PairingHint(target, reference));
    config_.compare = true;
    return absl::OkStatus();
  }

  std::future<absl::StatusOr<OpenPair>> StartOpening(size_t index) const {
    return std::async(
        std::launch::async,
        [file_system = file_system_, &pair = pairs_[index],
         compare = config_.compare, notes = options_.overflow_check] {
          return OpenBoth(file_system, pair.first,
                          compare ? &pair.second : nullptr, notes);
        });
  }

  absl::Status WritePair(OpenPair* pair, GraphWriter* writer) {
    GraphSide& target = pair->target;
    if (!pair->reference.has_value()) {
      config_.micro_steps =
          std::max(config_.micro_steps, target.graph.AssignMicroSteps(nullptr));
      return writer->Write(target, nullptr, false);
    }
    return WriteCompared(&target, &*pair->reference, options_.fuzzy, writer);
  }

  absl::Status WriteCompared(GraphSide* target_side, GraphSide* reference_side,
                             bool fuzzy, GraphWriter* writer) {
    GraphSide& target = *target_side;
    GraphSide& reference = *reference_side;
    reference.place.step = target.place.step;
    RP_RETURN_IF_ERROR(CheckComparable(*target.dump, *reference.dump));
    config_.task = std::string(DumpModeName(target.dump->mode()));
    config_.tool_tip = ToolTip(target.dump->mode(),
                               target.dump->stats() | reference.dump->stats());
    config_.node_colors = NodeColors(target.dump->mode());
    if (maps_layers_) {
      MatchMapped(MapLayers(rules_, *target.dump, *reference.dump),
                  &target.graph, &reference.graph);
    } else if (fuzzy) {
      MatchFuzzyGraphs(&target.graph, &reference.graph);
    } else if (target.dump->framework() != reference.dump->framework()) {
      return absl::InvalidArgumentError(
          absl::StrCat(target.dump->path(), " and ", reference.dump->path(),
                       ": come from different frameworks; give a layer mapping "
                       "(-lm)"));
    } else {
      MatchExact(&target.graph, &reference.graph);
    }
    config_.micro_steps = std::max(
        config_.micro_steps, target.graph.AssignMicroSteps(&reference.graph));
    RP_RETURN_IF_ERROR(writer->Write(target, &reference, true));
    return writer->Write(reference, &target, false);
  }

  FileSystem* const file_system_;
  const VisualizeOptions& options_;
  const ProgressFn& progress_;
  std::vector<std::pair<DumpPlace, DumpPlace>> pairs_;
  bool maps_layers_ = false;
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
