// SPDX-License-Identifier: Apache-2.0
// Compares what a rank received with what the ranks sent: all_gather, broadcast,
// scatter, gather and all_to_all hand on tensors as they are.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// Of the sums behind Norm and Mean, whose order may differ where a tensor lies
// elsewhere in memory; relative to the largest elements.
constexpr double kOrderOfSum = 1e-6;
// Steps in which a message must have arrived as it was sent.
constexpr size_t kLeastFits = 5;
// Senders of one message that are kept apart: ranks may send equal tensors.
constexpr size_t kMaxAlike = 8;

// Functions whose results are their arguments on one rank or another. An output
// that no argument equals in any step, as of a tensor that is gathered into one,
// is not judged.
constexpr absl::string_view kFunctions[] = {"all_gather", "broadcast",
                                            "scatter", "gather", "all_to_all"};

struct CallValue {
  absl::string_view function;
  int64_t number = 0;
  absl::string_view place;  // "output.0.1"
};

std::optional<CallValue> ParseName(absl::string_view name) {
  // "Distributed.all_gather.0.forward.output.0.1"
  const std::vector<absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits('.', 4));
  CallValue out;
  if (parts.size() != 5 || parts[0] != "Distributed" || parts[3] != "forward" ||
      !absl::SimpleAtoi(parts[2], &out.number) ||
      std::find(std::begin(kFunctions), std::end(kFunctions), parts[1]) ==
          std::end(kFunctions))
    return std::nullopt;
  out.function = parts[1];
  out.place = parts[4];
  return out;
}

bool IsOutput(const CallValue& value) {
  return absl::StartsWith(value.place, "output");
}

bool AreClose(const RankCell& a, const RankCell& b) {
  const double size = std::max(std::fabs(a.largest), std::fabs(a.smallest));
  return a.largest == b.largest && a.smallest == b.smallest &&
         std::fabs(a.norm - b.norm) <= kOrderOfSum * std::fabs(a.norm) &&
         std::fabs(a.mean - b.mean) <= kOrderOfSum * size;
}

// A tensor that one rank gave to calls of a function, whatever their number: where
// ranks call it unequally often, equal numbers are not of one call.
struct Sent {
  int64_t rank = 0;
  absl::string_view place;
  const RankCell* cell = nullptr;
};

// What was sent in one step, by its extremes.
class SentOfStep {
 public:
  void Add(const Sent& sent) {
    std::vector<Sent>& alike = sent_[{sent.cell->largest, sent.cell->smallest}];
    if (alike.size() < kMaxAlike) alike.push_back(sent);
  }
  std::vector<Sent> Like(const RankCell& cell) const {
    std::vector<Sent> out;
    const auto it = sent_.find({cell.largest, cell.smallest});
    if (it == sent_.end()) return out;
    for (const Sent& sent : it->second) {
      if (AreClose(*sent.cell, cell)) out.push_back(sent);
    }
    return out;
  }

 private:
  std::map<std::pair<double, double>, std::vector<Sent>> sent_;
};

// One result of a call on one rank, over the steps.
struct Received {
  int64_t rank = 0;
  std::string name;
  CallValue value;
  const std::vector<RankCell>* cells = nullptr;
  std::vector<size_t> strange;  // steps in which nobody sent it
  std::optional<int64_t> sender;
};

class MessageChanged : public RankRule {
 public:
  absl::string_view name() const override { return "message-changed"; }
  absl::string_view needs() const override { return "communication"; }
  absl::string_view twin() const override {
    return "results that are no rank's argument in most steps, messages "
           "between "
           "ranks that are not recorded";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeastFits + 1; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && !ResultsOf(input).empty();
  }

  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::vector<Received> results = ResultsOf(input);
    const auto sent = SentIn(input);
    std::vector<Received*> changed;
    for (Received& result : results) {
      if (LookAt(input, sent, &result)) changed.push_back(&result);
    }
    std::optional<RankFinding> found;
    for (const Received* const result : changed)
      KeepEarliest(Describe(input, results, *result), &found);
    if (!found.has_value()) return {};
    return {*found};
  }

 private:
  using SentBySteps =
      std::map<absl::string_view, std::vector<SentOfStep>, std::less<>>;

  static std::vector<Received> ResultsOf(const RankInput& input) {
    std::vector<Received> out;
    for (const RankSeries& rank : input.ranks) {
      for (const auto& [name, cells] : rank.values) {
        const std::optional<CallValue> value = ParseName(name);
        if (!value.has_value() || !IsOutput(*value)) continue;
        out.push_back({rank.rank, name, *value, &cells, {}, std::nullopt});
      }
    }
    return out;
  }

  static SentBySteps SentIn(const RankInput& input) {
    SentBySteps out;
    for (const RankSeries& rank : input.ranks) {
      for (const auto& [name, cells] : rank.values) {
        const std::optional<CallValue> value = ParseName(name);
        if (!value.has_value() || IsOutput(*value)) continue;
        std::vector<SentOfStep>& steps = out[value->function];
        steps.resize(input.steps.size());
        for (size_t i = 0; i < input.steps.size(); ++i) {
          if (IsFinite(cells[i]))
            steps[i].Add({rank.rank, value->place, &cells[i]});
        }
      }
    }
    return out;
  }

  // Whether a result that ranks sent in most steps is none of theirs in others.
  static bool LookAt(const RankInput& input, const SentBySteps& sent,
                     Received* result) {
    const auto of_function = sent.find(result->value.function);
    if (of_function == sent.end()) return false;
    std::map<int64_t, size_t> senders;
    size_t fits = 0, first_strange = input.steps.size(), fits_before = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const RankCell& cell = (*result->cells)[i];
      // Where a NaN came from is overflow_check's question.
      if (!IsFinite(cell)) continue;
      const std::vector<Sent> alike = of_function->second[i].Like(cell);
      if (alike.empty()) {
        if (result->strange.empty()) {
          first_strange = i;
          fits_before = fits;
        }
        result->strange.push_back(i);
        continue;
      }
      ++fits;
      std::set<int64_t> ranks;
      for (const Sent& one : alike) ranks.insert(one.rank);
      for (const int64_t rank : ranks) ++senders[rank];
    }
    if (fits == 0) return false;
    const auto most = std::max_element(
        senders.begin(), senders.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    // The one rank whose argument it was in every step in which it was one.
    if (most->second == fits &&
        std::count_if(senders.begin(), senders.end(),
                      [&](const auto& one) { return one.second == fits; }) == 1)
      result->sender = most->first;
    // Either now and then, or from one step on.
    return !result->strange.empty() && first_strange < input.steps.size() &&
           fits >= kLeastFits &&
           (result->strange.size() * 10 <= fits || fits_before == fits);
  }

  // Who else received the same message rightly in the first of these steps.
  static std::optional<RankFinding> Describe(const RankInput& input,
                                             const std::vector<Received>& all,
                                             const Received& result) {
    const size_t step = result.strange.front();
    size_t right = 0, wrong = 0;
    for (const Received& other : all) {
      if (other.value.function != result.value.function ||
          other.value.number != result.value.number ||
          !result.sender.has_value() || other.sender != result.sender ||
          other.rank == result.rank || other.rank == *result.sender ||
          !IsFinite((*other.cells)[step]))
        continue;
      const bool is_strange =
          std::binary_search(other.strange.begin(), other.strange.end(), step);
      ++(is_strange ? wrong : right);
    }
    const RankCell& cell = (*result.cells)[step];
    RankFinding found;
    found.step = input.steps[step];
    found.name = result.name;
    found.rank = result.rank;
    const std::string value =
        absl::StrCat("Norm ", cell.norm, ", Mean ", cell.mean);
    if (!result.sender.has_value()) {
      found.what = absl::StrCat("rank ", result.rank, " received a tensor (",
                                value, ") that no rank sent");
    } else if (wrong > 0 && right == 0) {
      found.rank = *result.sender;
      found.what = absl::StrCat(
          "all ranks received from rank ", *result.sender, " a tensor (", value,
          ") that is not the one of its call: it changed between the call and "
          "the transfer");
    } else {
      found.what = absl::StrCat(
          "rank ", result.rank, " received from rank ", *result.sender,
          " a tensor (", value, ") that differs from what was sent",
          right > 0 ? absl::StrCat("; ", right,
                                   " other ranks received it as it "
                                   "was sent")
                    : "");
    }
    found.exact = true;
    return found;
  }
};

}  // namespace

void AddMessageRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<MessageChanged>());
}

}  // namespace rankprobe::analysis
