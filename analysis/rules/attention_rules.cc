// SPDX-License-Identifier: Apache-2.0
// Rules about the tokens that the attention of a language model sees, from what
// the monitor reads in the graph of the first losses.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr char kCostOfAttentionRules[] =
    "in three steps a reading of the graph, and of each attention call at most "
    "128 positions of 8 sequences";

// A token that must be predicted is seen by the attention.
class AttentionSeesFuture : public RankRule {
 public:
  absl::string_view name() const override { return "attention-sees-future"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfAttentionRules; }
  absl::string_view twin() const override {
    return "attention in both directions where the targets are not the next "
           "tokens: encoders, masked language models; a prefix of up to "
           "half of the sequence whose tokens see each other; normalizations "
           "over the features; one direction of a recurrent layer, "
           "convolutions whose padding is at the beginning";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "attention_sees") ||
           KnowsTraining(input, "repeated_masks") ||
           KnowsTraining(input, "layers_ahead");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::optional<RankFinding> found = LookAt(input, rank);
      if (!found.has_value()) found = MaskAfterSoftmax(input, rank);
      if (!found.has_value()) found = MaskRepeated(input, rank);
      if (!found.has_value()) found = LayersAhead(input, rank);
      if (found.has_value()) return {*std::move(found)};
    }
    return {};
  }

 private:
  // Finds the first step in which `name`, a number of calls and that of all, is
  // not 0. `what` continues the sentence "in 2 of 4".
  static std::optional<RankFinding> SomeCalls(const RankInput& input,
                                              const RankSeries& rank,
                                              absl::string_view name,
                                              absl::string_view what) {
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::vector<double> found = TrainingAt(rank, name, i);
      if (found.size() != 2 || found[0] == 0) continue;
      RankFinding finding;
      finding.step = input.steps[i];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = absl::StrCat("Training.0.debug.", name, ".0");
      finding.what = absl::StrCat("in ", found[0], " of ", found[1], what);
      return finding;
    }
    return std::nullopt;
  }
  static std::optional<RankFinding> MaskAfterSoftmax(const RankInput& input,
                                                     const RankSeries& rank) {
    return SomeCalls(
        input, rank, "masks_behind",
        " attention calls the causal mask multiplies the result of a softmax "
        "over all tokens: the weights of a token do not sum to 1, and depend "
        "on later tokens. Apply the mask before the softmax, as -inf");
  }
  // A rank of context parallelism masks each part of the keys as if it were its
  // own part.
  static std::optional<RankFinding> MaskRepeated(const RankInput& input,
                                                 const RankSeries& rank) {
    std::optional<RankFinding> found = SomeCalls(
        input, rank, "repeated_masks",
        " attention calls of a part of a sequence the mask is causal within "
        "two or more parts of the keys, as if each were the rank's own: tokens "
        "see keys of later parts, or not all of earlier ones");
    if (found.has_value()) found->exact = false;
    return found;
  }
  static std::optional<RankFinding> LayersAhead(const RankInput& input,
                                                const RankSeries& rank) {
    return SomeCalls(
        input, rank, "layers_ahead",
        " recurrent or convolution layers a position sees those behind it, and "
        "the targets are the next tokens: bidirectional=True, or padding at "
        "the end as well as at the beginning, shows the model its targets");
  }
  static std::optional<RankFinding> LookAt(const RankInput& input,
                                           const RankSeries& rank) {
    std::optional<int64_t> first;
    double one_ahead = 1, calls = 0;
    bool all_later = true, all_means = true;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::vector<double> sees = TrainingAt(rank, "attention_sees", i);
      if (sees.size() != 3) continue;
      if (!first.has_value()) first = input.steps[i];
      one_ahead = std::min(one_ahead, sees[0]);
      calls = sees[2];
      const std::vector<double> shares = TrainingAt(rank, "target_is_input", i);
      const bool are_next = shares.size() > 2 && shares[1] > kNextTokens;
      all_later = all_later && sees[1] == 1 && are_next;
      all_means = all_means && are_next &&
                  !TrainingAt(rank, "sequence_means", i).empty();
    }
    if (!first.has_value() || (one_ahead == 0 && !all_later && !all_means))
      return std::nullopt;
    RankFinding finding;
    finding.step = *first;
    if (one_ahead == 0 && !all_later) {
      finding.name = "Training.0.debug.sequence_means";
      finding.exact = false;
      finding.what =
          "tokens are scaled with, or shifted by, a mean over all tokens of "
          "their sequence, and the targets are the next tokens: a "
          "normalization over dim=1 of [batch, tokens, features] shows a token "
          "those behind it";
      return finding;
    }
    finding.name = "Training.0.debug.attention_sees";
    finding.what =
        one_ahead > 0
            ? absl::StrCat("in ", std::round(one_ahead * calls), " of ", calls,
                           " attention calls each token sees the next one and "
                           "none after it: the causal mask is shifted by one")
            : absl::StrCat("all ", calls,
                           " attention calls see later tokens, and the targets "
                           "are the next tokens: the causal mask is missing");
    return finding;
  }

  // Share of targets that are the next token of the input.
  static constexpr double kNextTokens = 0.9;
};

// Neighbouring positions are one after rounding.
class PositionsMerge : public RankRule {
 public:
  absl::string_view name() const override { return "positions-merge"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfAttentionRules; }
  absl::string_view twin() const override {
    return "positions of padding, which are equal up to the end or from the "
           "beginning; rotations by row and column of an image";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "merged_positions");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> merged =
            TrainingAt(rank, "merged_positions", i);
        if (merged.size() != 2 || merged[0] == 0) continue;
        RankFinding finding;
        finding.step = input.steps[i];
        finding.name = "Training.0.debug.merged_positions";
        finding.what = absl::StrCat(
            merged[0], " of ", merged[1],
            " positions have the rotary embedding of the position before, none "
            "of the first 256 among them: positions are rounded to 16 bits");
        return {finding};
      }
    }
    return {};
  }
};

// Weights that do not sum to 1 over what they weigh.
class SoftmaxDimension : public RankRule {
 public:
  absl::string_view name() const override { return "softmax-dimension"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfAttentionRules; }
  absl::string_view twin() const override {
    return "weights that are turned before the product, or whose product is "
           "not a square of positions; without a causal mask, or over the "
           "batch, it is only worth a look";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "softmax_dims") ||
           KnowsTraining(input, "pooled_over_batch");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> dims = TrainingAt(rank, "softmax_dims", i);
        if (dims.size() != 3 || dims[0] == 0) continue;
        RankFinding finding;
        finding.step = input.steps[i];
        finding.name = "Training.0.debug.softmax_dims.0";
        finding.exact = dims[1] > 0;
        finding.what = absl::StrCat(
            "in ", dims[0], " of ", dims[2],
            " attention calls the softmax is over another dimension than the "
            "product with the values sums over: the weights of a token do not "
            "sum to 1");
        return {finding};
      }
      std::optional<RankFinding> pooled = PooledOverBatch(input, rank);
      if (pooled.has_value()) return {*std::move(pooled)};
    }
    return {};
  }

 private:
  static std::optional<RankFinding> PooledOverBatch(const RankInput& input,
                                                    const RankSeries& rank) {
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const auto found = TrainingAt(rank, "pooled_over_batch", i);
      if (found.size() != 2 || found[0] == 0) continue;
      RankFinding finding;
      finding.step = input.steps[i];
      finding.name = "Training.0.debug.pooled_over_batch.0";
      finding.exact = false;
      finding.what = absl::StrCat(
          found[0], found[0] == 1 ? " softmax is" : " softmaxes are",
          " over the first dimension, which is the batch of ", found[1],
          ": the weights of a sample depend on the other samples, and do not "
          "sum to 1");
      return finding;
    }
    return std::nullopt;
  }
};

// Positions that are counted along the batch: each token of a sample has the
// same one.
class PositionsAlongBatch : public RankRule {
 public:
  absl::string_view name() const override { return "positions-along-batch"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfAttentionRules; }
  absl::string_view subject() const override {
    return "tokens that occur several times in two samples";
  }
  absl::string_view twin() const override {
    return "positions along the sequence, rotary positions; a condition of "
           "each sample, which differs in the next batch; an embedding of "
           "the place in the batch on purpose (of a sensor): worth a look, no "
           "fault";
  }
  size_t LeastSteps() const override { return 2; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, kValue);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<std::vector<double>> shown;
      size_t first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> apart = TrainingAt(rank, kValue, i);
        if (std::all_of(apart.begin(), apart.end(),
                        [](double one) { return one == 0; }))
          continue;
        Judge();
        if (shown.empty()) first = i;
        shown.push_back(apart);
      }
      if (shown.size() < 2 ||
          !std::all_of(shown.begin() + 1, shown.end(), [&](const auto& one) {
            return AreAlike(shown[0], one);
          }))
        continue;
      RankFinding finding;
      finding.step = input.steps[first];
      finding.name = absl::StrCat("Training.0.debug.", kValue, ".0");
      finding.exact = false;
      finding.what =
          "what the first layer takes of a token is the same at each position "
          "of a sample, and apart in two samples of a batch by the same "
          "numbers in each step: positions are counted along the batch "
          "(x.size(0) of a batch that comes first)";
      return {finding};
    }
    return {};
  }

 private:
  static constexpr char kValue[] = "positions_of_batch";
  static constexpr size_t kLeastFeatures = 3;
  static constexpr double kRounding = 1e-3;

  // A dropout may hide a feature of one step.
  static bool AreAlike(const std::vector<double>& one,
                       const std::vector<double>& other) {
    size_t same = 0;
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      if (one[i] == 0 || other[i] == 0) continue;
      if (std::fabs(one[i] - other[i]) > kRounding * std::max(one[i], other[i]))
        return false;
      ++same;
    }
    return same >= kLeastFeatures;
  }
};

// Rotary positions that begin again where the attention continues.
class PositionsBeginAnew : public RankRule {
 public:
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfAttentionRules; }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "rotary_places");
  }

 protected:
  struct Places {
    bool begins_at_0 = false;
    double before = 0;  // that the first token sees
    double again = 0;   // positions 0 behind the first
    double see_earlier = 0;
  };
  // The first step that has them.
  static std::optional<std::pair<size_t, Places>> PlacesOf(
      const RankInput& input, const RankSeries& rank) {
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::vector<double> found = TrainingAt(rank, "rotary_places", i);
      if (found.size() != 4) continue;
      return std::make_pair(
          i, Places{found[0] == 1, found[1], found[2], found[3]});
    }
    return std::nullopt;
  }
  static RankFinding FindingAt(const RankInput& input, size_t step) {
    RankFinding finding;
    finding.step = input.steps[step];
    finding.name = "Training.0.debug.rotary_places.0";
    finding.exact = false;
    return finding;
  }
};

// Documents that are packed into one row, and whose tokens see each other.
class DocumentsMix : public PositionsBeginAnew {
 public:
  absl::string_view name() const override { return "documents-mix"; }
  absl::string_view twin() const override {
    return "a mask for each document; padding before the tokens; rows of one "
           "document; documents that see each other on purpose: worth a look, "
           "no fault";
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const auto places = PlacesOf(input, rank);
      if (!places.has_value()) continue;
      Judge();
      if (places->second.again == 0 || places->second.see_earlier < 0.99)
        continue;
      RankFinding finding = FindingAt(input, places->first);
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.what = absl::StrCat(
          "positions begin again ", places->second.again,
          " times within a row, as those of packed documents do, and all "
          "tokens of the last document see tokens of those before it: the "
          "attention has no mask for each document");
      return {finding};
    }
    return {};
  }
};

// A sequence in parts on several ranks, each of which counts from 0.
class PositionsOfParts : public PositionsBeginAnew {
 public:
  absl::string_view name() const override { return "positions-of-parts"; }
  absl::string_view subject() const override {
    return "ranks that have later parts of a sequence than others";
  }
  absl::string_view twin() const override {
    return "positions that go on from rank to rank; a prefix that all ranks "
           "have before the first position: worth a look, no fault";
  }
  bool IsOfRanks() const override { return true; }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    bool has_first = false;
    for (const RankSeries& rank : input.ranks) {
      const auto places = PlacesOf(input, rank);
      if (!places.has_value()) continue;
      if (places->second.before == 0) {
        has_first |= places->second.begins_at_0;
        continue;
      }
      Judge();
      if (!places->second.begins_at_0 || found.has_value()) continue;
      found = FindingAt(input, places->first);
      found->rank = rank.rank;
      found->what = absl::StrCat(
          "the first token of this rank's part of the sequence sees ",
          places->second.before,
          " tokens before it, and its rotary position is 0, as on the rank "
          "with the first part: each rank counts its positions by itself");
    }
    if (!found.has_value() || !has_first) return {};
    return {*std::move(found)};
  }
};

}  // namespace

void AddAttentionRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<AttentionSeesFuture>());
  rules->push_back(std::make_unique<PositionsMerge>());
  rules->push_back(std::make_unique<SoftmaxDimension>());
  rules->push_back(std::make_unique<PositionsAlongBatch>());
  rules->push_back(std::make_unique<DocumentsMix>());
  rules->push_back(std::make_unique<PositionsOfParts>());
}

}  // namespace rankprobe::analysis
