// SPDX-License-Identifier: Apache-2.0
// Rules about residual connections in forward and backward.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

using CallCells = std::vector<RankCell>;

// The first call of a module in a step: its first input and output, and their
// gradients. Null: not recorded.
struct ModuleCall {
  std::string path;
  std::string name;  // "Module.layers.0.norm1.Rms"
  const CallCells* input = nullptr;
  const CallCells* output = nullptr;
  const CallCells* input_gradient = nullptr;
  const CallCells* output_gradient = nullptr;
};

// By path.
std::map<std::string, ModuleCall> ModuleCallsOf(const RankSeries& rank) {
  std::map<std::string, ModuleCall> calls;
  for (const auto& [name, cells] : rank.values) {
    absl::string_view module = name;
    if (!absl::StartsWith(module, "Module.")) continue;
    const CallCells* ModuleCall::*place = nullptr;
    // A backward takes gradients of outputs and makes those of inputs.
    if (absl::ConsumeSuffix(&module, ".forward.0.input.0")) {
      place = &ModuleCall::input;
    } else if (absl::ConsumeSuffix(&module, ".forward.0.output.0")) {
      place = &ModuleCall::output;
    } else if (absl::ConsumeSuffix(&module, ".backward.0.input.0")) {
      place = &ModuleCall::output_gradient;
    } else if (absl::ConsumeSuffix(&module, ".backward.0.output.0")) {
      place = &ModuleCall::input_gradient;
    } else {
      continue;
    }
    absl::ConsumePrefix(&module, "Module.");
    const std::string path(module.substr(0, module.rfind('.')));
    ModuleCall& call = calls[path];
    call.path = path;
    call.name = absl::StrCat("Module.", module);
    call.*place = &cells;
  }
  return calls;
}

// A value of a block that may be the sum of two others: the input of a module in
// it, or the output of the block.
struct BlockSum {
  const CallCells* value = nullptr;
  const CallCells* gradient = nullptr;
};

class ResidualDetached : public RankRule {
 public:
  absl::string_view name() const override { return "residual-detached"; }
  absl::string_view needs() const override {
    return "activations, activation_gradients";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view twin() const override {
    return "a residual that passes its gradient on, or passes through a module "
           "that gives on what it takes or keeps its mean (pooling, "
           "upsampling); a wrapper with a residual of its own; layers without "
           "one; values in 16 bits, whose sums are rounded, are not judged";
  }
  absl::string_view subject() const override {
    return "blocks that add what they take to what they make of it";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasValueEnding(input, ".backward.0.output.0");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::map<std::string, ModuleCall> calls = ModuleCallsOf(rank);
      std::optional<RankFinding> found;
      for (const auto& [path, block] : calls) {
        const auto one = LookAt(input, rank, calls, block);
        if (!one.has_value()) continue;
        if (found.has_value()) {
          ++found->others;
        } else {
          found = one;
        }
      }
      if (found.has_value()) return {*found};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;  // steps
  static constexpr size_t kMostModules = 64;

  static bool AreSame(const CallCells* a, const CallCells* b) {
    if (a == nullptr || b == nullptr) return false;
    size_t both = 0;
    for (size_t i = 0; i < a->size(); ++i) {
      if (!IsFinite((*a)[i]) || !IsFinite((*b)[i])) continue;
      if (!AreEqual((*a)[i], (*b)[i])) return false;
      if ((*a)[i].norm > 0) ++both;
    }
    return both >= kLeast;
  }
  // Means add up, in each step by much more than rounding.
  static bool IsSumOf(const CallCells* sum, const CallCells* a,
                      const CallCells* b) {
    size_t steps = 0;
    for (size_t i = 0; i < sum->size(); ++i) {
      const RankCell &s = (*sum)[i], &x = (*a)[i], &y = (*b)[i];
      if (!IsFinite(s) || !IsFinite(x) || !IsFinite(y)) continue;
      const double rounding = 1e-6 * LargestOf(s);
      if (std::fabs(s.mean - x.mean - y.mean) > rounding) return false;
      if (std::fabs(x.mean) > 100 * rounding &&
          std::fabs(y.mean) > 100 * rounding)
        ++steps;
    }
    return steps >= kLeast;
  }
  // Whether the means of both agree in each step, as those of a pooling or an
  // upsampling and of what it takes do: then a sum with one looks like a sum with
  // the other.
  static bool HaveSameMeans(const CallCells* a, const CallCells* b) {
    for (size_t i = 0; i < a->size(); ++i) {
      const RankCell &x = (*a)[i], &y = (*b)[i];
      if (!IsFinite(x) || !IsFinite(y)) continue;
      const double rounding =
          1e-6 * std::max({std::fabs(x.largest), std::fabs(x.smallest),
                           std::fabs(y.largest), std::fabs(y.smallest)});
      if (std::fabs(x.mean - y.mean) > rounding) return false;
    }
    return true;
  }
  static bool HasGradient(const CallCells* gradient) {
    return gradient != nullptr &&
           std::any_of(gradient->begin(), gradient->end(),
                       [](const RankCell& cell) {
                         return IsFinite(cell) && cell.norm > 0;
                       });
  }

  void JudgeResiduals(const std::vector<const ModuleCall*>& inside,
                      const std::vector<BlockSum>& sums) const {
    for (const ModuleCall* const user : inside) {
      for (const ModuleCall* const branch : inside) {
        if (has_judged()) return;
        if (branch == user || user->input == nullptr ||
            branch->output == nullptr)
          continue;
        const bool is_added =
            std::any_of(sums.begin(), sums.end(), [&](const BlockSum& sum) {
              return sum.value != user->input && sum.value != branch->output &&
                     IsSumOf(sum.value, user->input, branch->output);
            });
        if (is_added) Judge();
      }
    }
  }

  std::optional<RankFinding> LookAt(
      const RankInput& input, const RankSeries& rank,
      const std::map<std::string, ModuleCall>& calls,
      const ModuleCall& block) const {
    std::vector<const ModuleCall*> inside;
    const std::string prefix = absl::StrCat(block.path, ".");
    for (auto it = calls.lower_bound(prefix);
         it != calls.end() && absl::StartsWith(it->first, prefix); ++it)
      inside.push_back(&it->second);
    if (inside.size() < 2 || inside.size() > kMostModules) return std::nullopt;
    std::vector<BlockSum> sums;
    sums.reserve(inside.size() + 1);
    if (block.output != nullptr)
      sums.push_back({block.output, block.output_gradient});
    for (const ModuleCall* const call : inside) {
      if (call->input != nullptr)
        sums.push_back({call->input, call->input_gradient});
    }
    JudgeResiduals(inside, sums);
    for (const ModuleCall* const user : inside) {
      if (GivesOn(rank, *user)) continue;
      // The only one that has the gradient of what it takes.
      const std::string how = WhoseGradient(block, inside, *user);
      if (how.empty() || user->input == nullptr || user->output == nullptr ||
          HaveSameMeans(user->output, user->input))
        continue;
      for (const BlockSum& sum : sums) {
        if (sum.value == user->input || !HasGradient(sum.gradient)) continue;
        for (const ModuleCall* const branch : inside) {
          // What it adds within itself is its own.
          if (branch == user || IsIn(*branch, *user) ||
              branch->output == nullptr || branch->output == sum.value ||
              !IsSumOf(sum.value, user->input, branch->output) ||
              // A wrapper that adds what it takes to what a module registered
              // elsewhere makes of it has a residual of its own.
              IsSumOf(user->output, user->input, branch->output))
            continue;
          RankFinding finding;
          finding.step = input.steps[0];
          finding.name = absl::StrCat(user->name, ".backward.0.output.0");
          finding.what = absl::StrCat(
              block.path, " adds the input of ", user->path,
              " to the output of ", branch->path, ", and the gradient of ", how,
              " is that which ", user->path,
              " gives it alone: the residual is detached");
          return finding;
        }
      }
    }
    return std::nullopt;
  }

  static bool IsIn(const ModuleCall& call, const ModuleCall& outer) {
    return absl::StartsWith(call.path, outer.path + ".");
  }

  // Whether it gives on what it takes (Identity), or may do so beside another
  // output: who uses that one gives it a gradient, which this module passes on.
  static bool GivesOn(const RankSeries& rank, const ModuleCall& call) {
    const std::string prefix = absl::StrCat(call.name, ".forward.0.output.");
    for (auto it = rank.values.lower_bound(prefix);
         it != rank.values.end() && absl::StartsWith(it->first, prefix); ++it) {
      if (&it->second != call.output || AreSame(call.output, call.input))
        return true;
    }
    return false;
  }

  // The value that the module takes, where all gradient that it has is that of
  // this module: the block's input, or what an output in the block was added to.
  static std::string WhoseGradient(const ModuleCall& block,
                                   const std::vector<const ModuleCall*>& inside,
                                   const ModuleCall& user) {
    if (AreSame(block.input, user.input) &&
        AreSame(block.input_gradient, user.input_gradient))
      return absl::StrCat("the input of ", block.path);
    for (const ModuleCall* const made : inside) {
      if (made == &user || IsIn(*made, user) ||
          !AreSame(made->output_gradient, user.input_gradient) ||
          made->output == nullptr || block.input == nullptr ||
          user.input == nullptr ||
          !IsSumOf(user.input, block.input, made->output))
        continue;
      return absl::StrCat("the output of ", made->path);
    }
    return "";
  }
};

}  // namespace

void AddResidualRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<ResidualDetached>());
}

}  // namespace rankprobe::analysis
