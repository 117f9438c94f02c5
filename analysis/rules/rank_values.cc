// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/rule.h"

namespace rankprobe::analysis {

const std::vector<RankCell>* RankSeries::Find(absl::string_view name) const {
  const auto it = values.find(name);
  return it == values.end() ? nullptr : &it->second;
}

const std::vector<RankCell>* RankSeries::Of(absl::string_view prefix,
                                            absl::string_view parameter,
                                            absl::string_view what) const {
  return Find(absl::StrCat(prefix, ".", parameter, ".0.debug.", what));
}

std::vector<double> TrainingAt(const RankSeries& rank, absl::string_view name,
                               size_t step) {
  std::vector<double> out;
  const std::string whole = absl::StrCat("Training.0.debug.", name);
  const auto* const one = rank.Find(whole);
  if (one != nullptr && IsFinite((*one)[step])) return {(*one)[step].mean};
  // Another step may have one.
  for (size_t i = 0;; ++i) {
    const auto* const next = rank.Find(absl::StrCat(whole, ".", i));
    if (next == nullptr) break;
    if (IsFinite((*next)[step])) out.push_back((*next)[step].mean);
  }
  return out;
}

bool KnowsTraining(const RankInput& input, absl::string_view name) {
  return std::any_of(input.ranks.begin(), input.ranks.end(),
                     [&](const RankSeries& rank) {
                       for (size_t i = 0; i < input.steps.size(); ++i) {
                         if (!TrainingAt(rank, name, i).empty()) return true;
                       }
                       return false;
                     });
}

HeldCells HeldAt(const RankInput& input, const std::vector<size_t>& group,
                 absl::string_view name, size_t step) {
  HeldCells held;
  for (const size_t r : group) {
    const auto* const cells = input.ranks[r].Find(name);
    if (cells != nullptr && IsFinite((*cells)[step]))
      held.emplace_back(input.ranks[r].rank, &(*cells)[step]);
  }
  return held;
}

bool AreAllEqual(const HeldCells& held) {
  return std::all_of(held.begin(), held.end(), [&](const auto& one) {
    return AreEqual(*one.second, *held[0].second);
  });
}

void KeepEarliest(std::optional<RankFinding> one,
                  std::optional<RankFinding>* found) {
  if (!one.has_value()) return;
  const size_t others = found->has_value() ? (*found)->others + 1 : 0;
  if (!found->has_value() || one->step < (*found)->step ||
      (one->step == (*found)->step && one->deviation > (*found)->deviation))
    *found = std::move(one);
  (*found)->others = others;
}

std::vector<OwnGradient> OwnGradientsOf(const RankSeries& rank) {
  std::map<std::string, std::map<int64_t, const std::vector<RankCell>*>> found;
  for (const auto& [name, cells] : rank.values) {
    // "Module.{path}.{Class}.parameters_grad.{n}.{parameter}"
    absl::string_view path = name;
    if (!absl::ConsumePrefix(&path, "Module.")) continue;
    const size_t at = path.find(".parameters_grad.");
    if (at == absl::string_view::npos) continue;
    absl::string_view rest = path.substr(at + 17);
    path = path.substr(0, at);
    const size_t dot = path.rfind('.');
    path = dot == absl::string_view::npos ? "" : path.substr(0, dot);
    const size_t end = rest.find('.');
    int64_t number = 0;
    if (end == absl::string_view::npos ||
        !absl::SimpleAtoi(rest.substr(0, end), &number))
      continue;
    found[absl::StrCat(path, path.empty() ? "" : ".", rest.substr(end + 1))]
         [number] = &cells;
  }
  std::vector<OwnGradient> out;
  for (const auto& [parameter, micro] : found) {
    OwnGradient& own = out.emplace_back();
    own.parameter = parameter;
    for (const auto& [number, cells] : micro) own.micro.push_back(cells);
  }
  return out;
}

void ForEachOfModule(
    const RankSeries& rank, absl::string_view path,
    absl::FunctionRef<void(const std::string& name, absl::string_view what,
                           const std::vector<RankCell>& cells)>
        see) {
  const std::string module = absl::StrCat("Module.", path, ".");
  for (auto it = rank.values.lower_bound(module);
       it != rank.values.end() && absl::StartsWith(it->first, module); ++it) {
    absl::string_view what = it->first;
    what.remove_prefix(module.size());
    what.remove_prefix(std::min(what.find('.'), what.size()));
    see(it->first, what, it->second);
  }
}

namespace {

// Returns the gradient of the output of a module that has one backward in a
// step; null if it has several, or none.
const std::vector<RankCell>* OnlyArrival(const RankSeries& rank,
                                         absl::string_view path) {
  const std::vector<RankCell>* found = nullptr;
  size_t backwards = 0;
  ForEachOfModule(
      rank, path,
      [&](const std::string& /*name*/, absl::string_view what,
          const std::vector<RankCell>& cells) {
        // ".backward.{n}.input.0"
        if (!absl::ConsumePrefix(&what, ".backward.") ||
            what.substr(std::min(what.find('.'), what.size())) != ".input.0")
          return;
        ++backwards;
        found = &cells;
      });
  return backwards == 1 ? found : nullptr;
}

}  // namespace

bool AreOfOneBackward(const RankSeries& rank,
                      const std::vector<OwnGradient>& gradients) {
  constexpr absl::string_view kBias = ".bias";
  constexpr size_t kLeast = 5;        // steps
  constexpr double kRounding = 1e-3;  // of the quotient, and of a mean
  for (const OwnGradient& own : gradients) {
    absl::string_view path = own.parameter;
    if (own.micro.size() != 1 || !absl::ConsumeSuffix(&path, kBias)) continue;
    // A generator's first call may have no backward.
    const std::vector<RankCell>* const arrived = OnlyArrival(rank, path);
    if (arrived == nullptr) continue;
    std::vector<double> rows;
    for (size_t i = 0; i < arrived->size(); ++i) {
      const RankCell &arrives = (*arrived)[i], &left = (*own.micro[0])[i];
      if (IsFinite(arrives) && IsFinite(left) &&
          std::fabs(arrives.mean) > kRounding * LargestOf(arrives))
        rows.push_back(left.mean / arrives.mean);
    }
    if (rows.size() < kLeast) continue;
    const double usual = MedianOf(rows);
    if (std::all_of(rows.begin(), rows.end(), [&](double one) {
          return std::fabs(one - usual) <= kRounding * std::fabs(usual);
        }))
      return true;
  }
  return false;
}

const RankCell* LastMicro(const OwnGradient& own, size_t step) {
  const RankCell* last = nullptr;
  for (const auto* const micro : own.micro) {
    if (IsFinite((*micro)[step])) last = &(*micro)[step];
  }
  return last;
}

namespace {

// Returns the losses of a step, each divided by the weight of its targets if
// that is known.
std::vector<double> PlainLossesAt(const RankSeries& rank, size_t step) {
  std::vector<double> losses = TrainingAt(rank, "loss", step);
  const std::vector<double> tokens = TrainingAt(rank, "loss_tokens", step);
  const std::vector<double> weights = TrainingAt(rank, "token_weight", step);
  if (tokens.size() != losses.size() || weights.size() != losses.size())
    return losses;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double weight = tokens[i] * weights[i];
    if (weight > 0) losses[i] /= weight;
  }
  return losses;
}

// Returns whether the same one of the first and the last loss is larger in
// nearly all steps. For batches of one data set this varies.
bool IsOneLossLarger(const RankInput& input, const RankSeries& rank) {
  constexpr size_t kLeast = 8;
  size_t steps = 0, first = 0, last = 0;
  for (size_t i = 0; i < input.steps.size(); ++i) {
    const std::vector<double> losses = PlainLossesAt(rank, i);
    if (losses.size() < 2) continue;
    ++steps;
    first += losses.front() > losses.back() ? 1 : 0;
    last += losses.front() < losses.back() ? 1 : 0;
  }
  return steps >= kLeast && 10 * std::max(first, last) >= 9 * steps;
}

}  // namespace

bool MayBeMicroBatches(const RankInput& input, const RankSeries& rank) {
  std::vector<size_t> counts;
  for (const OwnGradient& own : OwnGradientsOf(rank)) {
    size_t most = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const auto count = static_cast<size_t>(std::count_if(
          own.micro.begin(), own.micro.end(),
          [&](const auto* cells) { return (*cells)[i].is_there; }));
      most = std::max(most, count);
    }
    if (most > 0) counts.push_back(most);
  }
  if (counts.empty()) return true;
  const size_t most = *std::max_element(counts.begin(), counts.end());
  const auto fewer = static_cast<size_t>(std::count_if(
      counts.begin(), counts.end(), [&](size_t one) { return one < most; }));
  // Only some micro batches may use an expert.
  return fewer * 10 <= counts.size() && !IsOneLossLarger(input, rank);
}

std::vector<std::string> ParametersOf(const RankSeries& rank) {
  std::vector<std::string> out;
  for (const auto& [name, cells] : rank.values) {
    std::string parameter = ParameterOf(name, "Parameter", "param");
    if (!parameter.empty()) out.push_back(std::move(parameter));
  }
  return out;
}

bool HasParameters(const RankInput& input) {
  return std::any_of(
      input.ranks.begin(), input.ranks.end(),
      [](const RankSeries& rank) { return !ParametersOf(rank).empty(); });
}

bool HasValueEnding(const RankInput& input, absl::string_view suffix) {
  return std::any_of(
      input.ranks.begin(), input.ranks.end(), [suffix](const RankSeries& rank) {
        return std::any_of(rank.values.begin(), rank.values.end(),
                           [suffix](const auto& value) {
                             return absl::EndsWith(value.first, suffix);
                           });
      });
}

bool HasOwnGradients(const RankInput& input) {
  return std::any_of(
      input.ranks.begin(), input.ranks.end(), [](const RankSeries& rank) {
        return !OwnGradientsOf(rank).empty() && !ParametersOf(rank).empty();
      });
}

namespace {

// Returns the first recorded cell of a parameter, or null.
const RankCell* FirstOf(const RankSeries& rank, const std::string& parameter) {
  const auto* const cells = rank.Of("Parameter", parameter, "param");
  if (cells == nullptr) return nullptr;
  const auto first =
      std::find_if(cells->begin(), cells->end(),
                   [](const RankCell& cell) { return cell.is_there; });
  return first == cells->end() ? nullptr : &*first;
}

// Whether the ranks have most parameters by the same names, which begin with the
// same numbers. Constant ones, such as the weights of a normalization, always do.
// are_all: none of one name begins with other numbers.
bool BeginAlike(const RankSeries& a, const RankSeries& b, bool are_all) {
  size_t all = 0, alike = 0;
  for (const std::string& parameter : ParametersOf(b)) {
    const RankCell* const of_a = FirstOf(a, parameter);
    const RankCell* const of_b = FirstOf(b, parameter);
    if (of_b == nullptr || of_b->largest == of_b->smallest) continue;
    ++all;
    if (of_a == nullptr) continue;
    if (AreEqual(*of_a, *of_b)) {
      ++alike;
    } else if (are_all) {
      return false;
    }
  }
  return alike > 1 && 2 * alike >= all;
}

// Distinguishes stages of a pipeline from replicas: replicas all compute a loss,
// stages pass tensors to each other and only the last one computes it.
class Stages {
 public:
  explicit Stages(const RankInput& input) : input_(input) {
    for (const RankSeries& rank : input.ranks) {
      bool has_loss = false, passes = false;
      // A step of several micro batches has several losses.
      for (const char* const name :
           {"Training.0.debug.loss", "Training.0.debug.loss.0"}) {
        const std::vector<RankCell>* const cells = rank.Find(name);
        has_loss =
            has_loss || (cells != nullptr &&
                         std::any_of(cells->begin(), cells->end(), IsFinite));
      }
      for (auto it = rank.values.lower_bound("Distributed.");
           it != rank.values.end() && !passes &&
           absl::StartsWith(it->first, "Distributed.");
           ++it) {
        passes = absl::StrContains(it->first, "send") ||
                 absl::StrContains(it->first, "recv");
      }
      has_loss_.push_back(has_loss);
      passes_.push_back(passes);
    }
    const auto last = std::find(has_loss_.begin(), has_loss_.end(), true);
    if (last == has_loss_.end()) return;
    const RankSeries& of_last =
        input.ranks[static_cast<size_t>(last - has_loss_.begin())];
    one_seed_ = true;
    for (size_t r = 0; r < input.ranks.size(); ++r) {
      one_seed_ =
          one_seed_ && (has_loss_[r] ||
                        BeginAlike(input.ranks[r], of_last, /*are_all=*/true));
    }
  }
  // Whether these ranks are different stages that one seed has started.
  bool AreStages(size_t a, size_t b) const {
    const bool one_has_loss = has_loss_[a] != has_loss_[b];
    const bool both_pass = passes_[a] && passes_[b];
    if (one_seed_ && (one_has_loss || (both_pass && !has_loss_[a])))
      return true;
    // The first and the last layer of a model may have one name.
    return one_has_loss && both_pass &&
           BeginAlike(input_.ranks[a], input_.ranks[b], /*are_all=*/false);
  }

 private:
  const RankInput& input_;
  std::vector<bool> has_loss_, passes_;
  // Whether each stage begins with the numbers of the last one.
  bool one_seed_ = false;
};

}  // namespace

std::vector<std::vector<size_t>> WithoutStages(const RankInput& input) {
  const Stages stages(input);
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < input.ranks.size(); ++i) {
    const auto known = std::find_if(
        groups.begin(), groups.end(),
        [&](const auto& group) { return !stages.AreStages(group[0], i); });
    if (known == groups.end()) {
      groups.push_back({i});
    } else {
      known->push_back(i);
    }
  }
  return groups;
}

std::vector<std::vector<size_t>> ReplicasOf(const RankInput& input) {
  const Stages stages(input);
  std::vector<std::vector<size_t>> groups;
  const auto are_replicas = [&](const RankSeries& a, const RankSeries& b) {
    const std::vector<std::string> parameters = ParametersOf(a);
    if (parameters.empty() || parameters != ParametersOf(b)) return false;
    for (const std::string& parameter : parameters) {
      const auto* const of_a = a.Of("Parameter", parameter, "param");
      const auto* const of_b = b.Of("Parameter", parameter, "param");
      for (size_t i = 0; i < input.steps.size(); ++i) {
        if (!(*of_a)[i].is_there || !(*of_b)[i].is_there) continue;
        if (!AreEqual((*of_a)[i], (*of_b)[i])) return false;
        break;
      }
    }
    return true;
  };
  for (size_t i = 0; i < input.ranks.size(); ++i) {
    const auto known =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
          return are_replicas(input.ranks[group[0]], input.ranks[i]) &&
                 !stages.AreStages(group[0], i);
        });
    if (known == groups.end()) {
      groups.push_back({i});
    } else {
      known->push_back(i);
    }
  }
  return groups;
}

double DeviationOf(const RankCell& a, const RankCell& b) {
  const double size = std::max(std::fabs(a.norm), std::fabs(b.norm));
  if (size == 0) return 0;
  return std::max({std::fabs(a.norm - b.norm), std::fabs(a.mean - b.mean),
                   std::fabs(a.largest - b.largest),
                   std::fabs(a.smallest - b.smallest)}) /
         size;
}

bool AreEqual(const RankCell& a, const RankCell& b) {
  return a.norm == b.norm && a.mean == b.mean && a.largest == b.largest &&
         a.smallest == b.smallest;
}

bool AreClose(const RankCell& a, const RankCell& b) {
  constexpr double kOrderOfSum = 1e-6;
  return a.largest == b.largest && a.smallest == b.smallest &&
         std::fabs(a.norm - b.norm) <= kOrderOfSum * std::fabs(a.norm) &&
         std::fabs(a.mean - b.mean) <= kOrderOfSum * LargestOf(a);
}

bool IsFinite(const RankCell& cell) {
  return cell.is_there && std::isfinite(cell.norm) && std::isfinite(cell.mean);
}

double LargestOf(const RankCell& cell) {
  return std::max(std::fabs(cell.largest), std::fabs(cell.smallest));
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<std::unique_ptr<RankRule>> AllRankRules() {
  std::vector<std::unique_ptr<RankRule>> rules;
  AddCollectiveRules(&rules);
  AddMessageRules(&rules);
  AddGatherRules(&rules);
  AddParallelRules(&rules);
  AddMicroRules(&rules);
  AddForwardRules(&rules);
  AddReplicaRules(&rules);
  AddReductionRules(&rules);
  AddGradientRules(&rules);
  AddClipRules(&rules);
  AddOriginRules(&rules);
  AddStateRules(&rules);
  AddStartRules(&rules);
  AddLayerRules(&rules);
  AddWeightRules(&rules);
  AddLossRules(&rules);
  AddScheduleRules(&rules);
  AddShapeRules(&rules);
  AddObjectiveRules(&rules);
  AddBatchRules(&rules);
  AddDataRules(&rules);
  AddAttentionRules(&rules);
  AddModeRules(&rules);
  AddAverageRules(&rules);
  AddBlockRules(&rules);
  AddCallRules(&rules);
  AddResidualRules(&rules);
  return rules;
}

}  // namespace rankprobe::analysis
