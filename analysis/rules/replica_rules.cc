// SPDX-License-Identifier: Apache-2.0
// Rules about tensors that must stay equal: on ranks that are replicas, between two
// modules that are tied.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// The one of more than two that is not what the others are; -1: none is.
int64_t Stranger(const HeldCells& held) {
  if (held.size() < 3) return -1;
  for (size_t i = 0; i < held.size(); ++i) {
    const RankCell& other = *held[i == 0 ? 1 : 0].second;
    if (AreEqual(*held[i].second, other)) continue;
    const auto same = std::count_if(
        held.begin(), held.end(),
        [&](const auto& one) { return AreEqual(*one.second, other); });
    if (static_cast<size_t>(same) + 1 == held.size()) return held[i].first;
  }
  return -1;
}

// Buffers and reduced gradients are the same on replicas, and stay so.
class ReplicaParts : public RankRule {
 public:
  // `prefix`, `suffix`: of the names of values.
  ReplicaParts(absl::string_view name, absl::string_view prefix,
               absl::string_view suffix, size_t agreed, absl::string_view what,
               bool is_of_parts = false)
      : name_(name),
        prefix_(prefix),
        suffix_(suffix),
        agreed_(agreed),
        what_(what),
        is_of_parts_(is_of_parts) {}
  absl::string_view name() const override { return name_; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients";
  }
  absl::string_view subject() const override { return "replicas of one model"; }
  absl::string_view twin() const override {
    return "running statistics of normalisations, which each rank has of its "
           "own batches, and buffers that are not part of the model's state: "
           "neither is recorded";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return agreed_ + 1; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    std::vector<std::vector<size_t>> groups = ReplicasOf(input);
    if (is_of_parts_) {
      groups.assign(1, std::vector<size_t>(input.ranks.size()));
      std::iota(groups[0].begin(), groups[0].end(), size_t{0});
    }
    for (const std::vector<size_t>& group : groups) {
      if (group.size() < 2) continue;
      Judge();
      for (const auto& [name, cells] : input.ranks[group[0]].values) {
        if (!absl::StartsWith(name, prefix_) || !absl::EndsWith(name, suffix_))
          continue;
        KeepEarliest(LookAt(input, group, name), &found);
      }
    }
    if (!found.has_value()) return {};
    return {*found};
  }

 private:
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::vector<size_t>& group,
                                    const std::string& name) const {
    size_t agreed = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const HeldCells held = HeldAt(input, group, name, i);
      if (held.size() < 2) continue;
      if (AreAllEqual(held)) {
        ++agreed;
        continue;
      }
      const bool is_first = agreed < agreed_;
      if (is_first && !(agreed == 0 && IsUpdatedAlone(input, group, name)))
        return std::nullopt;
      RankFinding finding;
      finding.exact = !is_first;
      finding.step = input.steps[i];
      finding.rank = Stranger(held);
      const auto other =
          std::find_if(held.begin(), held.end(), [&](const auto& one) {
            return !AreEqual(*one.second, *held[0].second);
          });
      finding.name = name;
      for (const auto& one : held) {
        finding.deviation = std::max(finding.deviation,
                                     DeviationOf(*held[0].second, *one.second));
      }
      finding.what = absl::StrCat(
          is_first ? "replicas update a buffer of the model's state in each "
                     "step, and each has its own: what it is made of is not "
                     "reduced over the ranks, or this is meant"
                   : what_,
          ": norms ", held[0].second->norm, " on rank ", held[0].first, " and ",
          other->second->norm, " on rank ", other->first, ", means ",
          held[0].second->mean, " and ", other->second->mean);
      return finding;
    }
    return std::nullopt;
  }
  // Whether a buffer that changes in each step on all ranks is never the same on
  // them. DistributedDataParallel sends the buffers of its "module" in each
  // forward. Running statistics are those of each rank by custom, and a single
  // number may be an average that is only printed.
  bool IsUpdatedAlone(const RankInput& input, const std::vector<size_t>& group,
                      const std::string& name) const {
    if (prefix_ != "Buffer." || absl::StartsWith(name, "Buffer.module.") ||
        absl::StrContains(name, ".running_") ||
        input.steps.size() < kLeastUpdates)
      return false;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const HeldCells held = HeldAt(input, group, name, i);
      if (held.size() < group.size() || AreAllEqual(held) ||
          held[0].second->largest == held[0].second->smallest)
        return false;
      const HeldCells before =
          i > 0 ? HeldAt(input, group, name, i - 1) : HeldCells();
      for (size_t r = 0; r < before.size(); ++r) {
        if (AreEqual(*before[r].second, *held[r].second)) return false;
      }
    }
    return true;
  }
  static constexpr size_t kLeastUpdates = 8;

  const absl::string_view name_, prefix_, suffix_;
  // Steps in which they have to be the same first.
  const size_t agreed_;
  const absl::string_view what_;
  // Ranks that hold parts of one model have to agree, too.
  const bool is_of_parts_;
};

// Replicas that began with other weights, though their gradients are averaged.
class ReplicasNeverAlike : public RankRule {
 public:
  absl::string_view name() const override { return "replicas-never-alike"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients";
  }
  absl::string_view twin() const override {
    return "shards, whose gradients differ as well";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    const RankSeries& first = input.ranks[0];
    for (size_t r = 1; r < input.ranks.size(); ++r) {
      // The parameter that differs most stands for all.
      std::string most;
      double deviation = 0;
      size_t unlike = 0, copies = 0;
      int64_t step = 0;
      for (const std::string& parameter : ParametersOf(first)) {
        const RankSeries& other = input.ranks[r];
        const auto* const a = first.Of("Parameter", parameter, "param");
        const auto* const b = other.Of("Parameter", parameter, "param");
        const auto* const ga = first.Of("Parameter", parameter, "grad");
        const auto* const gb = other.Of("Parameter", parameter, "grad");
        if (b == nullptr || ga == nullptr || gb == nullptr) continue;
        size_t i = 0;
        while (i < input.steps.size() &&
               (!IsFinite((*a)[i]) || !IsFinite((*b)[i]) ||
                !IsFinite((*ga)[i]) || !IsFinite((*gb)[i])))
          ++i;
        if (i == input.steps.size() || (*ga)[i].norm == 0 ||
            !AreEqual((*ga)[i], (*gb)[i]))
          continue;
        if (AreEqual((*a)[i], (*b)[i])) {
          ++copies;
          continue;
        }
        if (unlike++ == 0) step = input.steps[i];
        const double differs = DeviationOf((*a)[i], (*b)[i]);
        if (differs <= deviation) continue;
        deviation = differs;
        most = parameter;
      }
      if (unlike < 3 || most.empty()) continue;
      RankFinding finding;
      finding.step = step;
      finding.name = absl::StrCat("Parameter.", most, ".0.debug.param");
      finding.others = unlike - 1;
      finding.deviation = deviation;
      finding.what = absl::StrCat(
          "ranks ", first.rank, " and ", input.ranks[r].rank,
          " take the same gradient for weights that differ from the first "
          "recorded step on: ",
          copies < unlike ? "replicas that were not made alike"
                          : "beside copies they are parts, whose gradients are "
                            "reduced over "
                            "ranks that hold other parts (a wrong group)");
      return {finding};
    }
    return {};
  }
};

// An embedding and an output layer that began as one tensor.
class TiedWeightsPart : public RankRule {
 public:
  absl::string_view name() const override { return "tied-weights-part"; }
  absl::string_view needs() const override { return "activations, parameters"; }
  absl::string_view subject() const override {
    return "an Embedding and another layer that begin with the same numbers";
  }
  absl::string_view twin() const override {
    return "layers that are copies of each other when they are made: only an "
           "Embedding and another class of module are looked at, and two that "
           "part in their first step are worth a look, no fault";
  }
  size_t LeastSteps() const override { return 2; }
  bool CanJudge(const RankInput& input) const override {
    return !input.ranks.empty() && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<std::string> parameters = ParametersOf(rank);
      for (const std::string& embedding : parameters) {
        if (!IsOfEmbedding(rank, embedding)) continue;
        for (const std::string& other : parameters) {
          if (IsOfEmbedding(rank, other)) continue;
          const std::vector<RankCell>& held =
              *rank.Of("Parameter", embedding, "param");
          const auto part =
              Parting(held, *rank.Of("Parameter", other, "param"));
          if (!part.has_value()) continue;
          RankFinding finding;
          finding.step = input.steps[*part];
          finding.exact = HasMoved(held, *part);
          finding.name = absl::StrCat("Parameter.", other, ".0.debug.param");
          finding.what =
              absl::StrCat(other, " and ", embedding,
                           " begin with the same numbers and part here: two "
                           "tensors instead of one that was tied");
          return {finding};
        }
      }
    }
    return {};
  }

 private:
  static bool IsOfEmbedding(const RankSeries& rank,
                            absl::string_view parameter) {
    absl::string_view path = parameter;
    return absl::ConsumeSuffix(&path, ".weight") &&
           rank.Find(absl::StrCat("Module.", path,
                                  ".Embedding.forward.0.parameters.weight")) !=
               nullptr;
  }
  // Whether the numbers changed in the steps before: they were trained as one.
  static bool HasMoved(const std::vector<RankCell>& held, size_t end) {
    const RankCell* first = nullptr;
    for (size_t i = 0; i < end; ++i) {
      if (!IsFinite(held[i])) continue;
      if (first == nullptr) first = &held[i];
      if (!AreEqual(*first, held[i])) return true;
    }
    return false;
  }
  std::optional<size_t> Parting(const std::vector<RankCell>& a,
                                const std::vector<RankCell>& b) const {
    bool began_alike = false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!IsFinite(a[i]) || !IsFinite(b[i])) continue;
      const bool alike = AreEqual(a[i], b[i]) && a[i].largest != a[i].smallest;
      if (!alike && !began_alike) return std::nullopt;
      if (!alike) return i;
      began_alike = true;
      Judge();
    }
    return std::nullopt;
  }
};

}  // namespace

void AddReplicaRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(
      std::make_unique<ReplicaParts>("buffer-parts", "Buffer.", ".buffer", 1,
                                     "a buffer of the model's state was the "
                                     "same on the replicas and no longer is"));
  rules->push_back(std::make_unique<ReplicaParts>(
      "reduced-gradient-parts", "Parameter.", ".grad", 3,
      "the reduced gradient was the same on the replicas and no longer is"));
  rules->push_back(std::make_unique<ReplicaParts>(
      "learning-rate-parts", "Training.0.debug.lr", "", 0,
      "replicas have different learning rates"));
  rules->push_back(std::make_unique<ReplicaParts>(
      "loss-scale-parts", "Training.0.debug.loss_scale", "", 1,
      "the ranks had the same loss scale and no longer have it: a rank judges "
      "its own gradients alone, and skips its own steps",
      /*is_of_parts=*/true));
  rules->push_back(std::make_unique<ReplicasNeverAlike>());
  rules->push_back(std::make_unique<TiedWeightsPart>());
}

}  // namespace rankprobe::analysis
