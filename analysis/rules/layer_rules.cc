// SPDX-License-Identifier: Apache-2.0
// Rules about inputs, outputs and gradients of layers: data of another scale,
// outputs that do not depend on the input, gradients that vanish.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// A normalization over one number has its bias as output, whatever its input is.
class OutputConstant : public RankRule {
 public:
  absl::string_view name() const override { return "output-constant"; }
  absl::string_view needs() const override { return "weight_gradients"; }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a normalization layer with a weight and a bias";
  }
  absl::string_view twin() const override {
    return "layers whose weight has a gradient in any step; layers without a "
           "gradient";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (const std::string& parameter : ParametersOf(rank)) {
        constexpr absl::string_view kBias = ".bias";
        if (!absl::EndsWith(parameter, kBias)) continue;
        const std::string path =
            parameter.substr(0, parameter.size() - kBias.size());
        const std::string module = NormOf(rank, path);
        if (module.empty()) continue;
        Judge();
        if (!IsConstant(rank, path)) continue;
        RankFinding finding;
        finding.step = input.steps[0];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = absl::StrCat(module, ".forward.0.output.0");
        finding.what = absl::StrCat(
            "the gradient of the weight of this layer is 0 or a rounding error "
            "in each step, and that of its bias is not: its output is the bias "
            "for every input. It normalizes over one number: a group for each "
            "channel of [batch, channels], or a layer of one feature");
        return {finding};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;  // steps

  // Of the bias's gradient. What is less is rounding.
  static constexpr double kRounding = 1e-4;

  // "Module.fc.GroupNorm" of "fc"; empty for other layers, and for one that
  // takes zeros, as the first layer of a decoder of learned queries does.
  static std::string NormOf(const RankSeries& rank, const std::string& path) {
    std::string module;
    ForEachOfModule(
        rank, path,
        [&](const std::string& name, absl::string_view what,
            const std::vector<RankCell>& cells) {
          const std::string before = name.substr(0, name.size() - what.size());
          if (what == ".forward.0.input.0" &&
              absl::StrContains(before.substr(before.rfind('.') + 1), "Norm") &&
              std::none_of(cells.begin(), cells.end(), [](const RankCell& one) {
                return IsFinite(one) && one.largest == one.smallest;
              }))
            module = before;
        });
    return module;
  }
  static bool IsConstant(const RankSeries& rank, const std::string& path) {
    const auto* const weight =
        rank.Of("Parameter", absl::StrCat(path, ".weight"), "grad");
    const auto* const bias =
        rank.Of("Parameter", absl::StrCat(path, ".bias"), "grad");
    if (weight == nullptr || bias == nullptr) return false;
    size_t steps = 0;
    for (size_t i = 0; i < weight->size(); ++i) {
      if (!IsFinite((*weight)[i]) || !IsFinite((*bias)[i])) continue;
      if ((*weight)[i].norm > kRounding * (*bias)[i].norm) return false;
      steps += (*bias)[i].norm > 0 ? 1 : 0;
    }
    return steps >= kLeast;
  }
};

// Gradients that fall from layer to layer, as those of many sigmoids do.
class GradientsVanish : public RankRule {
 public:
  absl::string_view name() const override { return "gradients-vanish"; }
  absl::string_view needs() const override { return "weight_gradients"; }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "six weights with gradients";
  }
  absl::string_view twin() const override {
    return "branches that begin at 0 or nearly (LayerScale), whose gradients "
           "are small at once and not from layer to layer; experts that few "
           "tokens use";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      // Logarithms of the norms, relative to the largest of the step.
      std::vector<std::pair<double, std::string>> sizes = SizesOf(rank);
      if (sizes.size() < kLeastWeights) continue;
      Judge();
      std::sort(sizes.begin(), sizes.end());
      double widest = 0;
      size_t small = 0;
      for (size_t p = 0; p + 1 < sizes.size(); ++p) {
        widest = std::max(widest, sizes[p + 1].first - sizes[p].first);
        small += sizes[p].first < kSmall ? 1 : 0;
      }
      if (sizes[0].first > kVanished || widest > kWidest ||
          small < kLeastSmall || !KeepOrder(rank, sizes))
        continue;
      RankFinding finding;
      finding.step = input.steps[0];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name =
          absl::StrCat("Parameter.", sizes[0].second, ".0.debug.grad");
      finding.exact = false;
      finding.others = small - 1;
      finding.what = absl::StrCat(
          "the gradient becomes smaller from layer to layer, from ",
          sizes.back().second, " to ", sizes[0].second, ", where it is 10^",
          std::round(sizes[0].first),
          " times as large: it vanishes, and these layers are not trained. "
          "Sigmoids or tanhs in each layer do this; use ReLUs, normalization "
          "layers or residuals");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;  // steps
  static constexpr size_t kLeastWeights = 6, kLeastSmall = 4;
  // Powers of 10, relative to the largest gradient.
  static constexpr double kVanished = -6, kSmall = -2, kWidest = 2;

  static const std::vector<RankCell>* GradientsOf(
      const RankSeries& rank, const std::string& parameter) {
    return rank.Of("Parameter", parameter, "grad");
  }
  static std::vector<std::pair<double, std::string>> SizesOf(
      const RankSeries& rank) {
    std::vector<std::string> weights = ParametersOf(rank);
    std::erase_if(weights, [&](const std::string& one) {
      return !absl::EndsWith(one, "weight") ||
             GradientsOf(rank, one) == nullptr;
    });
    std::vector<std::vector<double>> sizes(weights.size());
    for (size_t i = 0;
         !weights.empty() && i < GradientsOf(rank, weights[0])->size(); ++i) {
      double largest = 0;
      for (const std::string& weight : weights) {
        const RankCell& cell = (*GradientsOf(rank, weight))[i];
        if (IsFinite(cell)) largest = std::max(largest, cell.norm);
      }
      for (size_t p = 0; p < weights.size(); ++p) {
        const RankCell& cell = (*GradientsOf(rank, weights[p]))[i];
        if (IsFinite(cell) && cell.norm > 0)
          sizes[p].push_back(std::log10(cell.norm / largest));
      }
    }
    std::vector<std::pair<double, std::string>> out;
    for (size_t p = 0; p < weights.size(); ++p) {
      if (sizes[p].size() >= kLeast)
        out.emplace_back(MedianOf(std::move(sizes[p])), weights[p]);
    }
    return out;
  }
  // Whether the small ones have the same order in nearly all steps.
  static bool KeepOrder(
      const RankSeries& rank,
      const std::vector<std::pair<double, std::string>>& sizes) {
    size_t looked = 0, kept = 0;
    for (size_t p = 0; p + 1 < sizes.size() && sizes[p].first < kSmall; ++p) {
      const auto& lower = *GradientsOf(rank, sizes[p].second);
      const auto& upper = *GradientsOf(rank, sizes[p + 1].second);
      for (size_t i = 0; i < lower.size(); ++i) {
        if (!IsFinite(lower[i]) || !IsFinite(upper[i])) continue;
        ++looked;
        kept += lower[i].norm <= upper[i].norm ? 1 : 0;
      }
    }
    return kept * 10 >= looked * 9;
  }
};

// Samples that are normalized once more in each epoch: in place, in the data set.
class InputRescaled : public RankRule {
 public:
  absl::string_view name() const override { return "input-rescaled"; }
  absl::string_view needs() const override {
    return "activations, activation gradients, weight_gradients";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a layer that takes data";
  }
  absl::string_view twin() const override {
    return "data whose scale changes little by little, or returns; what other "
           "layers make; a second data set of another scale on purpose: worth "
           "a look, no fault";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (const auto& [name, cells] : rank.values) {
        if (!IsOfData(rank, name)) continue;
        Judge();
        const std::optional<size_t> since = RescaledSince(cells);
        if (!since.has_value()) continue;
        RankFinding finding;
        finding.step = input.steps[*since];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = name;
        finding.exact = false;
        finding.what = absl::StrCat(
            "the data that this layer takes are within ",
            SpreadOf(cells[*since]), " from this step on, and were within ",
            SpreadBefore(cells, *since),
            " before: samples are normalized more than once, such as by a "
            "__getitem__ that changes the data set in place in each epoch");
        return {finding};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 4;  // steps before and after the change
  static constexpr double kLeastFactor = 20;

  // "Module.conv1.Conv2d.forward.0.input.0" of a trained layer whose input has
  // no gradient: nothing that is trained made it.
  static bool IsOfData(const RankSeries& rank, const std::string& name) {
    constexpr absl::string_view kInput = ".forward.0.input.0";
    if (!absl::StartsWith(name, "Module.") || !absl::EndsWith(name, kInput))
      return false;
    const std::string module = name.substr(0, name.size() - kInput.size());
    const bool is_layer = std::any_of(
        std::begin(kLayers), std::end(kLayers), [&](const char* one) {
          return absl::EndsWith(module, absl::StrCat(".", one));
        });
    return is_layer &&
           rank.Find(absl::StrCat(module, ".parameters_grad.0.weight")) !=
               nullptr &&
           rank.Find(absl::StrCat(module, ".backward.0.output.0")) == nullptr;
  }
  static double SpreadOf(const RankCell& cell) {
    return cell.largest - cell.smallest;
  }
  static double SpreadBefore(const std::vector<RankCell>& cells, size_t step) {
    while (step > 0 && !IsFinite(cells[step - 1])) --step;
    return step > 0 ? SpreadOf(cells[step - 1]) : 0;
  }
  // The step that parts the spreads into two sets, one of which is far below the
  // other.
  static std::optional<size_t> RescaledSince(
      const std::vector<RankCell>& cells) {
    std::vector<std::pair<size_t, double>> spreads;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (IsFinite(cells[i]) && SpreadOf(cells[i]) > 0)
        spreads.emplace_back(i, SpreadOf(cells[i]));
    }
    // Of each step: the smallest and the largest spread from it to the last one.
    std::vector<std::pair<double, double>> after(spreads.size());
    for (size_t k = spreads.size(); k-- > 0;) {
      const double spread = spreads[k].second;
      const auto& next =
          k + 1 < after.size() ? after[k + 1] : std::pair(spread, spread);
      after[k] = {std::min(spread, next.first), std::max(spread, next.second)};
    }
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;
    for (size_t k = 0; k + kLeast <= spreads.size(); ++k) {
      if (k >= kLeast && (after[k].second * kLeastFactor < smallest ||
                          largest * kLeastFactor < after[k].first))
        return spreads[k].first;
      smallest = std::min(smallest, spreads[k].second);
      largest = std::max(largest, spreads[k].second);
    }
    return std::nullopt;
  }
  static constexpr const char* kLayers[] = {"Linear", "Conv1d", "Conv2d",
                                            "Conv3d"};
};

// A layer that begins at zero and is frozen adds nothing to the model.
class LayerGivesZeros : public RankRule {
 public:
  absl::string_view name() const override { return "layer-gives-zeros"; }
  absl::string_view needs() const override { return "activations, parameters"; }
  absl::string_view subject() const override {
    return "a linear or convolution layer that is not trained";
  }
  absl::string_view twin() const override {
    return "layers that begin at zero and are trained; layers without a call "
           "in a step; a frozen model on its own; layers that were pruned: "
           "worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    const RankSeries& rank = input.ranks[0];
    std::set<std::string> layers;
    for (const std::string& parameter : ParametersOf(rank)) {
      const auto* const taken = rank.Of("Parameter", parameter, "grad");
      if (taken != nullptr &&
          std::any_of(taken->begin(), taken->end(), IsFinite))
        layers.insert(parameter.substr(0, parameter.rfind('.')));
    }
    for (const auto& [name, cells] : rank.values) {
      const std::string layer = LayerOf(name);
      if (layer.empty() || layers.contains(layer)) continue;
      Judge();
      size_t zeros = 0, calls = 0;
      for (const RankCell& cell : cells) {
        calls += cell.is_there ? 1 : 0;
        zeros += cell.is_there && cell.largest == 0 && cell.smallest == 0;
      }
      if (zeros < kLeast || zeros < calls) continue;
      if (found.has_value()) {
        ++found->others;
        continue;
      }
      found = RankFinding{input.steps[0], -1, name, "", false};
      found->what =
          absl::StrCat(layer, " gives zeros in each of ", zeros,
                       " steps and is not trained: a layer that begins at zero "
                       "and is frozen, as that of an adapter, adds nothing to "
                       "the model");
    }
    if (!found.has_value()) return {};
    return {*std::move(found)};
  }

 private:
  static constexpr size_t kLeast = 8;  // steps

  // "layers.0.fc" of "Module.layers.0.fc.Linear.forward.0.output.0"; "" of
  // other values.
  static std::string LayerOf(absl::string_view name) {
    if (!absl::ConsumePrefix(&name, "Module.") ||
        !absl::ConsumeSuffix(&name, ".forward.0.output.0"))
      return "";
    for (const absl::string_view of :
         {".Linear", ".Conv1d", ".Conv2d", ".Conv3d"}) {
      if (absl::ConsumeSuffix(&name, of)) return std::string(name);
    }
    return "";
  }
};

}  // namespace

void AddLayerRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<OutputConstant>());
  rules->push_back(std::make_unique<GradientsVanish>());
  rules->push_back(std::make_unique<InputRescaled>());
  rules->push_back(std::make_unique<LayerGivesZeros>());
}

}  // namespace rankprobe::analysis
