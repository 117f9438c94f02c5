// SPDX-License-Identifier: Apache-2.0
// Blocks of one kind are trained alike: a parameter without a gradient, or one
// that is frozen, among its counterparts in the other blocks.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kLeastBlockSteps = 3;

enum class BlockTraining {
  kGradient,  // in any step
  kMissing,   // wants one and never has it
  kFrozen,
};

// A parameter that a module uses, as one of a row of blocks.
struct BlockMember {
  std::string parameter;
  // "layers.1" of "layers.1.mlp.up.weight".
  std::string block;
  // Of the value that a finding names.
  std::string name;
  BlockTraining training = BlockTraining::kGradient;
};

// Counterparts by the number of their block: "layers.*.mlp.up.weight" of one
// class.
using BlockRow = std::map<int64_t, BlockMember>;

size_t StepsOf(const std::vector<RankCell>* cells) {
  return cells == nullptr ? 0
                          : static_cast<size_t>(std::count_if(
                                cells->begin(), cells->end(),
                                [](const RankCell& c) { return c.is_there; }));
}

class Blocks {
 public:
  explicit Blocks(const RankSeries& rank) : rank_(rank) {
    for (const OwnGradient& own : OwnGradientsOf(rank)) {
      size_t steps = 0;
      for (const auto* const micro : own.micro) steps += StepsOf(micro);
      if (steps > 0) with_own_gradient_.insert(own.parameter);
    }
    for (const auto& [name, cells] : rank.values) AddUsed(name, cells);
  }
  const std::map<std::pair<std::string, std::string>, BlockRow>& rows() const {
    return rows_;
  }
  // All parameters that modules use, by their name.
  const std::map<std::string, BlockMember>& used() const { return used_; }
  // Whether another parameter of the block has a gradient.
  bool IsTrainedInPart(const std::string& block) const {
    return trained_.count(block) > 0;
  }
  // Whether it gives more than one tensor, as blocks of two streams do.
  bool GivesSeveral(const std::string& block) const {
    bool gives = false;
    ForEachOfModule(rank_, block,
                    [&](const std::string& /*name*/, absl::string_view what,
                        const std::vector<RankCell>& /*cells*/) {
                      gives |=
                          absl::ConsumePrefix(&what, ".forward.0.output.") &&
                          what != "0";
                    });
    return gives;
  }

 private:
  // "Module.{path}.{Class}.forward.{n}.parameters.{parameter}"
  void AddUsed(absl::string_view name, const std::vector<RankCell>& cells) {
    const std::string whole(name);
    if (!absl::ConsumePrefix(&name, "Module.")) return;
    const size_t at = name.find(".forward.0.parameters.");
    if (at == absl::string_view::npos || StepsOf(&cells) < kLeastBlockSteps)
      return;
    const absl::string_view module = name.substr(0, at);
    const size_t dot = module.rfind('.');
    if (dot == absl::string_view::npos) return;
    BlockMember member;
    member.parameter =
        absl::StrCat(module.substr(0, dot), ".", name.substr(at + 22));
    const std::optional<BlockTraining> training = TrainingOf(member.parameter);
    if (!training.has_value()) return;
    member.training = *training;
    member.name =
        absl::StrCat("Parameter.", member.parameter, ".0.debug.param");
    if (rank_.Find(member.name) == nullptr) member.name = whole;
    used_.emplace(member.parameter, member);
    std::vector<std::string> parts = absl::StrSplit(member.parameter, '.');
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(parts[i], &number)) continue;
      member.block = absl::StrJoin(
          parts.begin(), parts.begin() + static_cast<int64_t>(i) + 1, ".");
      if (member.training == BlockTraining::kGradient)
        trained_.insert(member.block);
      std::vector<std::string> row = parts;
      row[i] = "*";
      rows_[{absl::StrJoin(row, "."), std::string(module.substr(dot + 1))}]
           [number] = member;
    }
  }

  // Null: it cannot be said.
  std::optional<BlockTraining> TrainingOf(const std::string& parameter) const {
    const size_t held = StepsOf(rank_.Of("Parameter", parameter, "param"));
    if (with_own_gradient_.count(parameter) > 0 ||
        StepsOf(rank_.Of("Parameter", parameter, "grad")) > 0)
      return BlockTraining::kGradient;
    const bool is_updated =
        StepsOf(rank_.Of("Update", parameter, "update")) > 0;
    if (held >= kLeastBlockSteps && is_updated) return BlockTraining::kMissing;
    return is_updated ? std::nullopt
                      : std::make_optional(BlockTraining::kFrozen);
  }

  const RankSeries& rank_;
  std::set<std::string> with_own_gradient_;
  std::set<std::string> trained_;
  std::map<std::string, BlockMember> used_;
  std::map<std::pair<std::string, std::string>, BlockRow> rows_;
};

bool CanSeeBlocks(const RankInput& input) {
  return std::any_of(
      input.ranks.begin(), input.ranks.end(), [](const RankSeries& rank) {
        bool gradient = false, update = false, used = false;
        for (const auto& [name, cells] : rank.values) {
          const absl::string_view text = name;
          gradient |= absl::StartsWith(text, "Parameter.") &&
                      absl::EndsWith(text, ".debug.grad");
          update |= absl::StartsWith(text, "Update.") &&
                    absl::EndsWith(text, ".debug.update");
          used |= absl::StrContains(text, ".forward.0.parameters.");
        }
        return gradient && update && used;
      });
}

// Of a row, the blocks of that training; none where they are not the fewer.
std::vector<int64_t> Exceptions(const BlockRow& row, BlockTraining training) {
  std::vector<int64_t> out;
  size_t trained = 0;
  for (const auto& [number, member] : row) {
    if (member.training == training) out.push_back(number);
    trained += member.training == BlockTraining::kGradient ? 1 : 0;
  }
  if (trained < 2 * out.size() || trained < 2) out.clear();
  return out;
}

// What rules that compare blocks have in common.
class BlockRule : public RankRule {
 public:
  absl::string_view needs() const override {
    return "activations, weight_gradients, parameters, optimizer";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "blocks of one kind with a number (layers.0, layers.1)";
  }
  size_t LeastSteps() const override { return kLeastBlockSteps; }
  bool CanJudge(const RankInput& input) const override {
    return CanSeeBlocks(input);
  }
};

// "encoder" is around "encoder.conv.weight" and around itself.
bool IsAround(absl::string_view part, absl::string_view name) {
  return absl::ConsumePrefix(&name, part) &&
         (name.empty() || absl::StartsWith(name, "."));
}

// Finds parts of a model without a gradient whose output is an input of trained
// parts. Parts are known by their names, without the number of a block.
class PartsWithoutGradient {
 public:
  PartsWithoutGradient(const RankSeries& rank, const Blocks& blocks)
      : rank_(rank) {
    for (const auto& [parameter, member] : blocks.used()) {
      if (member.training == BlockTraining::kGradient)
        trained_.push_back(parameter);
    }
    for (const auto& [parameter, member] : blocks.used()) {
      if (member.training == BlockTraining::kMissing)
        parts_[PartOf(parameter)].push_back(&member);
    }
    parts_.erase("");
  }
  // That with the most parameters; null: there is none.
  const std::pair<const std::string, std::vector<const BlockMember*>>* Largest()
      const {
    const std::pair<const std::string, std::vector<const BlockMember*>>* found =
        nullptr;
    for (const auto& part : parts_) {
      if ((found == nullptr || found->second.size() < part.second.size()) &&
          (IsRouter(part.first) || IsUsedByTrained(part.first)))
        found = &part;
    }
    return found;
  }

 private:
  bool HasTrained(absl::string_view part) const {
    return std::any_of(
        trained_.begin(), trained_.end(),
        [&](const std::string& name) { return IsAround(part, name); });
  }
  // The outermost module around a parameter without one that is trained; "":
  // there is none.
  std::string PartOf(const std::string& parameter) const {
    for (size_t dot = parameter.find('.'); dot != std::string::npos;
         dot = parameter.find('.', dot + 1)) {
      const std::string part = parameter.substr(0, dot);
      if (!HasTrained(part)) return part;
    }
    return "";
  }
  // Calls of modules: what went in, or came out. A discriminator takes what a
  // generator makes in its second call.
  std::vector<std::pair<std::string, const std::vector<RankCell>*>> Values(
      absl::string_view what) const {
    std::vector<std::pair<std::string, const std::vector<RankCell>*>> out;
    for (const auto& [name, cells] : rank_.values) {
      absl::string_view path = name;
      const size_t call = path.find(".forward.");
      if (call == absl::string_view::npos ||
          !absl::ConsumePrefix(&path, "Module.") ||
          !absl::ConsumeSuffix(&path, what))
        continue;
      path = absl::string_view(name).substr(7, call - 7);
      const size_t dot = path.rfind('.');
      if (dot != absl::string_view::npos)
        out.emplace_back(path.substr(0, dot), &cells);
    }
    return out;
  }
  // What a router chooses has a gradient only by the weights of the chosen.
  static bool IsRouter(absl::string_view part) {
    const size_t dot = part.rfind('.');
    const absl::string_view last =
        dot == absl::string_view::npos ? part : part.substr(dot + 1);
    return absl::StrContains(last, "router") || last == "gate" ||
           last == "gating";
  }
  // A pooler whose output is not used has no gradient, and is not a fault.
  bool IsUsedByTrained(const std::string& part) const {
    const auto outputs = Values(".output.0");
    for (const auto& [taker, input] : Values(".input.0")) {
      if (IsAround(part, taker) || IsAround(taker, part) || !HasTrained(taker))
        continue;
      for (const auto& [maker, output] : outputs) {
        if (IsAround(part, maker) && AreSame(*output, *input)) return true;
      }
    }
    return false;
  }
  // Except for the rounding of a straight-through estimator: x + (q - x).
  static bool AreAlike(const RankCell& one, const RankCell& other) {
    constexpr double kRounding = 2e-6;
    const double most = kRounding * LargestOf(one);
    return std::fabs(one.norm - other.norm) <= kRounding * one.norm &&
           std::fabs(one.mean - other.mean) <= most &&
           std::fabs(one.largest - other.largest) <= most &&
           std::fabs(one.smallest - other.smallest) <= most;
  }
  static bool AreSame(const std::vector<RankCell>& one,
                      const std::vector<RankCell>& other) {
    size_t steps = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      if (one[i].is_there != other[i].is_there) return false;
      if (!one[i].is_there) continue;
      if (!AreAlike(one[i], other[i])) return false;
      ++steps;
    }
    return steps >= kLeastBlockSteps;
  }

  const RankSeries& rank_;
  std::vector<std::string> trained_;
  std::map<std::string, std::vector<const BlockMember*>> parts_;
};

// A branch that is detached leaves its parameters without a gradient.
class GradientMissing : public BlockRule {
 public:
  absl::string_view name() const override { return "gradient-missing"; }
  absl::string_view twin() const override {
    return "blocks that are frozen, or run without a graph, completely; "
           "experts and heads that no batch uses; the last block, whose output "
           "may be unused, and a part of another kind, as a backbone that runs "
           "without a graph: these are only worth a look; the last of blocks "
           "that give several tensors, some of which are not used";
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const Blocks blocks(rank);
      // In some blocks, and in all of them.
      std::optional<RankFinding> in_some, in_all;
      for (const auto& [key, row] : blocks.rows()) {
        if (row.size() > 1) Judge();
        const std::vector<int64_t> some =
            Exceptions(row, BlockTraining::kMissing);
        for (const int64_t number : some) {
          const BlockMember& member = row.at(number);
          const bool is_last = number == row.rbegin()->first;
          // The second stream is not used behind the last block.
          if (is_last && blocks.GivesSeveral(member.block)) continue;
          const bool is_sure = !is_last && blocks.IsTrainedInPart(member.block);
          Keep(Finding(input, member, is_sure,
                       "while its counterparts in other blocks have one"),
               &in_some);
        }
        if (!some.empty() || !AreAllMissing(blocks, row)) continue;
        for (const auto& [number, member] : row) {
          Keep(Finding(input, member, false,
                       "like its counterparts in all other blocks, whose "
                       "other parameters have one"),
               &in_all);
        }
      }
      if (in_some.has_value()) return {*in_some};
      if (in_all.has_value()) return {*in_all};
      const PartsWithoutGradient parts(rank, blocks);
      if (const auto* const part = parts.Largest(); part != nullptr)
        return {Finding(input, part->first, part->second)};
      std::optional<RankFinding> most = MostMissing(input, rank, blocks);
      if (most.has_value()) return {*std::move(most)};
    }
    return {};
  }

 private:
  static RankFinding Finding(const RankInput& input, const BlockMember& member,
                             bool exact, absl::string_view why) {
    RankFinding finding;
    finding.step = input.steps[0];
    finding.name = member.name;
    finding.exact = exact;
    finding.what =
        absl::StrCat(member.parameter,
                     " is used, requires a gradient and "
                     "is held by the optimizer, and has no gradient in any of ",
                     input.steps.size(), " steps, ", why,
                     ": what it computes is detached, or it is not used");
    return finding;
  }
  static RankFinding Finding(const RankInput& input, const std::string& part,
                             const std::vector<const BlockMember*>& members) {
    RankFinding finding;
    finding.step = input.steps[0];
    finding.name = members[0]->name;
    finding.exact = false;
    finding.others = members.size() - 1;
    finding.what = absl::StrCat(
        "no parameter of ", part, " has a gradient in any of ",
        input.steps.size(), " steps. ", members.size(),
        members.size() == 1 ? " of them requires one and is "
                            : " of them require one and are ",
        "held by the optimizer, and its output is used: it runs under "
        "no_grad(), its output is detached, it is a router whose weights do "
        "not multiply what the experts make or a codebook without a loss, or "
        "this is meant");
    return finding;
  }
  // Adapters in blocks that are recomputed without a graph, because no input of
  // the block requires a gradient.
  static std::optional<RankFinding> MostMissing(const RankInput& input,
                                                const RankSeries& rank,
                                                const Blocks& blocks) {
    std::set<std::string> of_rows;
    for (const auto& [key, row] : blocks.rows()) {
      const bool are_all =
          row.size() >= 2 &&
          std::all_of(row.begin(), row.end(), [](const auto& one) {
            return one.second.training == BlockTraining::kMissing;
          });
      for (const auto& [number, member] : row) {
        if (are_all) of_rows.insert(member.parameter);
      }
    }
    if (of_rows.size() < kLeastMissing ||
        2 * of_rows.size() <= ParametersOf(rank).size())
      return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[0];
    finding.name = blocks.used().at(*of_rows.begin()).name;
    finding.exact = false;
    finding.others = of_rows.size() - 1;
    finding.what = absl::StrCat(
        of_rows.size(), " of the ", ParametersOf(rank).size(),
        " parameters that the optimizer holds have no gradient in any of ",
        input.steps.size(),
        " steps, in all blocks: these run without a graph (no_grad(), or "
        "reentrant checkpointing of inputs that require no gradient)");
    return finding;
  }
  static constexpr size_t kLeastMissing = 4;
  // The first that is sure, with the number of all others.
  static void Keep(RankFinding one, std::optional<RankFinding>* found) {
    if (!found->has_value()) {
      *found = std::move(one);
      return;
    }
    const size_t others = (*found)->others + 1;
    if (one.exact && !(*found)->exact) *found = std::move(one);
    (*found)->others = others;
  }
  static bool AreAllMissing(const Blocks& blocks, const BlockRow& row) {
    return row.size() >= 2 &&
           std::all_of(row.begin(), row.end(), [&](const auto& one) {
             return one.second.training == BlockTraining::kMissing &&
                    blocks.IsTrainedInPart(one.second.block);
           });
  }
};

// A block that is frozen between blocks that are trained.
class BlockFrozen : public BlockRule {
 public:
  absl::string_view name() const override { return "block-frozen"; }
  absl::string_view twin() const override {
    return "the first blocks or all of them frozen, as for fine-tuning and "
           "adapters; others that are frozen on purpose: worth a look, no "
           "fault";
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const Blocks blocks(rank);
      std::optional<RankFinding> found;
      for (const auto& [key, row] : blocks.rows()) {
        if (row.size() > 1) Judge();
        for (const int64_t number : Exceptions(row, BlockTraining::kFrozen)) {
          const BlockMember& member = row.at(number);
          // Who freezes the first blocks saves their backward.
          const bool is_behind = std::any_of(
              row.begin(), row.find(number), [](const auto& before) {
                return before.second.training == BlockTraining::kGradient;
              });
          if (!is_behind) continue;
          if (found.has_value()) {
            ++found->others;
            continue;
          }
          found = RankFinding{input.steps[0], -1, member.name, "", false};
          found->what = absl::StrCat(
              member.parameter,
              " requires no gradient, or no optimizer holds it and it has "
              "none, while its counterparts in blocks before and beside it "
              "are trained");
        }
      }
      if (found.has_value()) return {*found};
    }
    return {};
  }
};

}  // namespace

void AddBlockRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<GradientMissing>());
  rules->push_back(std::make_unique<BlockFrozen>());
}

}  // namespace rankprobe::analysis
