// SPDX-License-Identifier: Apache-2.0
// Compares what a rank received with what the ranks sent: all_gather,
// broadcast, scatter, gather and all_to_all pass tensors unchanged.
#include <algorithm>
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

// Steps in which a message must have arrived as it was sent.
constexpr size_t kLeastFits = 5;
// Ranks that are kept as possible senders of one tensor, since ranks may send
// equal tensors.
constexpr size_t kMaxSenders = 8;

// Functions each of whose results is an argument on some rank. An output that
// equals no argument in any step, such as a tensor that several were gathered
// into, is not judged.
constexpr absl::string_view kFunctions[] = {
    "all_gather", "broadcast", "scatter", "gather", "all_to_all",
    "send",       "recv",      "isend",   "irecv"};

// What is received by recv() is an argument of send() on another rank.
absl::string_view SentBy(absl::string_view function) {
  return absl::StrContains(function, "send") ||
                 absl::StrContains(function, "recv")
             ? "send"
             : function;
}

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

// The tensors that ranks passed to a function in one step, whatever the number
// of the call: where ranks call the function unequally often, equal numbers do
// not belong to one call.
class SentOfStep {
 public:
  void Add(int64_t rank, const RankCell& cell) {
    std::vector<Sent>& alike = sent_[{cell.largest, cell.smallest}];
    if (alike.size() < kMaxSenders) alike.push_back({rank, &cell});
  }
  // Empty: no rank sent such a tensor.
  std::set<int64_t> SendersOf(const RankCell& cell) const {
    std::set<int64_t> ranks;
    const auto it = sent_.find({cell.largest, cell.smallest});
    if (it == sent_.end()) return ranks;
    for (const Sent& sent : it->second) {
      if (AreClose(*sent.cell, cell)) ranks.insert(sent.rank);
    }
    return ranks;
  }

 private:
  struct Sent {
    int64_t rank = 0;
    const RankCell* cell = nullptr;
  };
  std::map<std::pair<double, double>, std::vector<Sent>> sent_;
};

// One result of a call on one rank, over the steps.
struct Received {
  int64_t rank = 0;
  std::string name;
  CallValue value;
  const std::vector<RankCell>* cells = nullptr;
  std::vector<size_t> strange;  // indices of steps in which no rank sent it
  // Empty: it is not known which rank.
  std::optional<int64_t> sender;
};

class MessageChanged : public RankRule {
 public:
  absl::string_view name() const override { return "message-changed"; }
  absl::string_view needs() const override { return "communication"; }
  absl::string_view twin() const override {
    return "results that are not a rank's argument in most steps, messages "
           "between ranks that are not recorded";
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
        std::vector<SentOfStep>& steps = out[SentBy(value->function)];
        steps.resize(input.steps.size());
        for (size_t i = 0; i < input.steps.size(); ++i) {
          if (IsFinite(cells[i])) steps[i].Add(rank.rank, cells[i]);
        }
      }
    }
    return out;
  }

  // Fills `strange` and `sender`. True: ranks sent the result in most steps, or
  // in all steps before one, and not in others.
  static bool LookAt(const RankInput& input, const SentBySteps& sent,
                     Received* result) {
    const auto of_function = sent.find(SentBy(result->value.function));
    if (of_function == sent.end()) return false;
    std::map<int64_t, size_t> senders;
    size_t fits = 0, fits_before = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const RankCell& cell = (*result->cells)[i];
      // overflow_check finds the origin of a NaN.
      if (!IsFinite(cell)) continue;
      const std::set<int64_t> ranks = of_function->second[i].SendersOf(cell);
      if (ranks.empty()) {
        if (result->strange.empty()) fits_before = fits;
        result->strange.push_back(i);
        continue;
      }
      ++fits;
      for (const int64_t rank : ranks) ++senders[rank];
    }
    if (fits == 0) return false;
    // The sender is the only rank that sent it in each of these steps.
    const auto sent_each = [&](const auto& one) { return one.second == fits; };
    if (std::count_if(senders.begin(), senders.end(), sent_each) == 1) {
      result->sender =
          std::find_if(senders.begin(), senders.end(), sent_each)->first;
    }
    return !result->strange.empty() && fits >= kLeastFits &&
           (result->strange.size() * 10 <= fits || fits_before == fits);
  }

  // Compares with what the other ranks received from the same sender in that
  // step.
  static RankFinding Describe(const RankInput& input,
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
                                   " of the other ranks received what was sent")
                    : "");
    }
    return found;
  }
};

// A message that no layer takes while two forwards take another one: both were
// received in one buffer.
class MessageOverwritten : public RankRule {
 public:
  absl::string_view name() const override { return "message-overwritten"; }
  absl::string_view needs() const override {
    return "communication, activations";
  }
  absl::string_view subject() const override {
    return "several messages of a step that modules take";
  }
  absl::string_view twin() const override {
    return "messages that are taken once each, or twice (recomputed), beside "
           "others of another kind, whose norm is another: worth a look, no "
           "fault";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return std::any_of(
        input.ranks.begin(), input.ranks.end(),
        [](const RankSeries& rank) { return ReceivedBy(rank).size() > 1; });
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const auto received = ReceivedBy(rank);
      if (received.size() < 2) continue;
      for (const auto& [module, calls] : ForwardsOf(rank)) {
        for (const std::string& lost : received) {
          const std::optional<size_t> first =
              LostSince(input, rank, received, calls, lost);
          if (!first.has_value()) continue;
          RankFinding finding;
          finding.step = input.steps[*first];
          finding.rank = rank.rank;
          finding.name = lost;
          finding.exact = false;
          finding.what = absl::StrCat(
              "two forwards of ", module,
              " take one message of the step, and none takes this one, in "
              "each step: it was received in a buffer that a later message "
              "overwrote before it was used");
          return {finding};
        }
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 5;  // steps

  static std::vector<std::string> ReceivedBy(const RankSeries& rank) {
    std::vector<std::string> names;
    for (const auto& [name, cells] : rank.values) {
      const std::optional<CallValue> value = ParseName(name);
      if (value.has_value() && IsOutput(*value) &&
          (value->function == "recv" || value->function == "irecv"))
        names.push_back(name);
    }
    return names;
  }
  // The first inputs of the forwards of each module that has several.
  static std::map<std::string, std::vector<const std::vector<RankCell>*>>
  ForwardsOf(const RankSeries& rank) {
    std::map<std::string, std::vector<const std::vector<RankCell>*>> out;
    for (const auto& [name, cells] : rank.values) {
      const size_t at = name.find(".forward.");
      if (absl::StartsWith(name, "Module.") && at != std::string::npos &&
          absl::EndsWith(name, ".input.0"))
        out[name.substr(0, at)].push_back(&cells);
    }
    std::erase_if(out, [](const auto& one) { return one.second.size() < 2; });
    return out;
  }
  // The first step, if in each of them no forward takes `lost` and several take
  // another message of about its norm.
  std::optional<size_t> LostSince(
      const RankInput& input, const RankSeries& rank,
      const std::vector<std::string>& received,
      const std::vector<const std::vector<RankCell>*>& forwards,
      const std::string& lost) const {
    size_t steps = 0, first = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const RankCell& message = (*rank.Find(lost))[i];
      if (!IsFinite(message)) continue;
      const auto takers = [&](const RankCell& one) {
        return std::count_if(
            forwards.begin(), forwards.end(), [&](const auto* cells) {
              return IsFinite((*cells)[i]) && AreClose((*cells)[i], one);
            });
      };
      if (takers(message) > 0) return std::nullopt;
      Judge();
      const bool is_doubled =
          std::any_of(received.begin(), received.end(), [&](const auto& name) {
            const RankCell& other = (*rank.Find(name))[i];
            return IsFinite(other) && takers(other) > 1 &&
                   other.norm < 2 * message.norm &&
                   message.norm < 2 * other.norm;
          });
      if (!is_doubled) return std::nullopt;
      if (steps++ == 0) first = i;
    }
    if (steps < kLeast) return std::nullopt;
    return first;
  }
};

}  // namespace

void AddMessageRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<MessageChanged>());
  rules->push_back(std::make_unique<MessageOverwritten>());
}

}  // namespace rankprobe::analysis
