// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge/merge.h"

#include <map>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "analysis/calls/comm_links.h"
#include "analysis/merge/merge_stages.h"
#include "analysis/merge/merge_tensors.h"
#include "analysis/merge/merge_tree.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

// Determines the groups from the communication calls; groups that these do not
// determine follow from the order of the dimensions.
class GroupFinder {
 public:
  GroupFinder(const MergePool& pool, const std::vector<MergeTree>& trees,
              const ParallelLayout& layout)
      : pool_(pool), trees_(trees), layout_(layout) {}

  absl::StatusOr<RankGroups> Tensor() {
    RankGroups groups;
    for (const MergeTree& tree : trees_) {
      RP_ASSIGN_OR_RETURN(
          const std::optional<CommCall> call,
          First(tree, [](absl::string_view id, const CommCall&) {
            return absl::StrContains(id, "reduce_scatter") ||
                   absl::StrContains(id, "all_reduce");
          }));
      if (!call.has_value() || call->group_ranks.empty()) continue;
      if (!absl::c_linear_search(groups, call->group_ranks)) {
        groups.push_back(call->group_ranks);
      }
    }
    return IsPartition(groups, layout_.ranks, layout_.tensor)
               ? groups
               : TensorGroups(layout_);
  }

  absl::StatusOr<RankGroups> Pipeline() {
    std::map<int64_t, int64_t> sends_to;
    for (const MergeTree& tree : trees_) {
      RP_ASSIGN_OR_RETURN(
          const std::optional<CommCall> call,
          First(tree, [&tree](absl::string_view, const CommCall& c) {
            return (c.op == "send" || c.op == "isend") && c.peer.has_value() &&
                   *c.peer != tree.rank;
          }));
      if (call.has_value()) sends_to[tree.rank] = *call->peer;
    }
    RankGroups groups = TracePipelines(sends_to);
    return IsPartition(groups, layout_.ranks, layout_.pipeline)
               ? groups
               : PipelineGroups(layout_);
  }

 private:
  // Returns the first communication of a rank, in the order of its dump, that
  // `want` accepts; each call of a batch counts separately.
  template <typename Want>
  absl::StatusOr<std::optional<CommCall>> First(const MergeTree& tree,
                                                const Want& want) {
    const DumpReader& dump =
        *pool_.dumps()[static_cast<size_t>(tree.root->node.dump)];
    for (size_t i = 0; i < dump.size(); ++i) {
      const absl::string_view id = dump.name(i);
      if (!absl::StartsWith(id, "Distributed.")) continue;
      RP_RETURN_IF_ERROR(dump.Read(i, &record_));
      if (absl::StrContains(id, ".batch_isend_irecv.")) {
        for (const CommCall& call : ReadCommBatch(record_.root())) {
          if (want(id, call)) return std::make_optional(call);
        }
        continue;
      }
      CommCall call = ReadCommCall(id, record_.root());
      if (want(id, call)) return std::make_optional(std::move(call));
    }
    return std::optional<CommCall>();
  }

  const MergePool& pool_;
  const std::vector<MergeTree>& trees_;
  const ParallelLayout& layout_;
  JsonDocument record_;
};

class Merger {
 public:
  explicit Merger(const ParallelLayout& layout) : layout_(layout) {}

  absl::StatusOr<MergedGraphs> Run(
      std::vector<std::pair<int64_t, std::unique_ptr<DumpReader>>> ranks) {
    for (std::pair<int64_t, std::unique_ptr<DumpReader>>& dump : ranks) {
      RP_ASSIGN_OR_RETURN(MergeTree tree,
                          pool_.Add(dump.first, std::move(dump.second)));
      trees_.push_back(std::move(tree));
    }
    GroupFinder groups(pool_, trees_, layout_);
    RP_ASSIGN_OR_RETURN(tensor_, groups.Tensor());
    RP_ASSIGN_OR_RETURN(pipeline_, groups.Pipeline());
    std::vector<size_t> kept;
    if (layout_.pipeline == 1) {
      RP_ASSIGN_OR_RETURN(kept, MergeGroups(tensor_, true));
    } else if (layout_.tensor == 1) {
      RP_ASSIGN_OR_RETURN(kept, MergeGroups(pipeline_, false));
    } else {
      RP_ASSIGN_OR_RETURN(kept, MergeBoth());
    }
    MergedGraphs out;
    for (const size_t index : kept) {
      const MergeTree& tree = trees_[index];
      out.graphs.push_back(
          {tree.rank, tree.micro_steps, MergePool::ToGraph(tree)});
    }
    out.dumps = pool_.TakeDumps();
    return out;
  }

 private:
  static std::vector<size_t> Indexes(const std::vector<int64_t>& ranks) {
    return {ranks.begin(), ranks.end()};
  }
  std::vector<MergeTree*> TreesOf(const std::vector<int64_t>& ranks) {
    std::vector<MergeTree*> out;
    out.reserve(ranks.size());
    for (const int64_t rank : ranks) {
      out.push_back(&trees_[static_cast<size_t>(rank)]);
    }
    return out;
  }

  // Merges along one dimension only.
  absl::StatusOr<std::vector<size_t>> MergeGroups(const RankGroups& groups,
                                                  bool tensor) {
    std::vector<size_t> kept;
    for (const std::vector<int64_t>& group : groups) {
      MergeApiCollections(&pool_, &trees_, Indexes(group));
      RP_RETURN_IF_ERROR(tensor ? MergeTensors(&pool_, TreesOf(group), {})
                                : MergeStages(&pool_, TreesOf(group),
                                              layout_.virtual_pipeline));
      kept.push_back(static_cast<size_t>(group[0]));
    }
    return kept;
  }

  // Merges the stages of each pipeline, then the pipelines of a tensor group.
  absl::StatusOr<std::vector<size_t>> MergeBoth() {
    TensorPartners partners;
    for (const std::vector<int64_t>& group : tensor_) {
      partners[group[0]].assign(group.begin() + 1, group.end());
    }
    const bool one_graph = layout_.tensor * layout_.pipeline == layout_.ranks;
    if (one_graph) {
      std::vector<size_t> all;
      for (size_t i = 0; i < trees_.size(); ++i) all.push_back(i);
      MergeApiCollections(&pool_, &trees_, all);
    }
    std::map<int64_t, bool> is_first;
    for (const std::vector<int64_t>& group : pipeline_) {
      if (!one_graph) MergeApiCollections(&pool_, &trees_, Indexes(group));
      RP_RETURN_IF_ERROR(
          MergeStages(&pool_, TreesOf(group), layout_.virtual_pipeline));
      is_first[group[0]] = true;
    }
    std::vector<size_t> kept;
    for (const std::vector<int64_t>& group : tensor_) {
      std::vector<int64_t> firsts;
      for (const int64_t rank : group) {
        if (is_first.contains(rank)) firsts.push_back(rank);
      }
      if (firsts.empty()) continue;
      if (!one_graph) MergeApiCollections(&pool_, &trees_, Indexes(firsts));
      RP_RETURN_IF_ERROR(MergeTensors(&pool_, TreesOf(firsts), partners));
      SortCollections(&trees_[static_cast<size_t>(firsts[0])]);
      kept.push_back(static_cast<size_t>(firsts[0]));
    }
    return kept;
  }

  // Sorts the calls between modules by rank.
  static void SortCollections(MergeTree* tree) {
    for (MergeNode* const node : tree->root->children) {
      if (!IsApiCollection(*node)) continue;
      absl::c_stable_sort(node->children,
                          [](const MergeNode* a, const MergeNode* b) {
                            return a->rank < b->rank;
                          });
    }
  }

  const ParallelLayout& layout_;
  MergePool pool_;
  std::vector<MergeTree> trees_;
  RankGroups tensor_;
  RankGroups pipeline_;
};

}  // namespace

absl::StatusOr<MergedGraphs> MergeRanks(
    const ParallelLayout& layout,
    std::vector<std::pair<int64_t, std::unique_ptr<DumpReader>>> ranks) {
  return Merger(layout).Run(std::move(ranks));
}

}  // namespace rankprobe::analysis
