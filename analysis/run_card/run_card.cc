// SPDX-License-Identifier: Apache-2.0
#include "analysis/run_card/run_card.h"

#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "analysis/calls/call_place.h"
#include "analysis/run_card/cards.h"
#include "common/base/status_macros.h"
#include "dump_format/input_files.h"
#include "dump_format/json_value.h"

namespace rankprobe::analysis {
namespace {

using Difference = v1::RunCardReport::Difference;
// Sections by how often a difference in them explains a divergence. Sections
// that are not listed come between the two halves.
constexpr std::array<absl::string_view, 8> kChangesNumbers = {
    "weights",   "batch",     "random state", "learning rate",
    "optimizer", "scheduler", "model",        "world"};
constexpr std::array<absl::string_view, 6> kMayChangeNumbers = {
    "determinism", "command line", "environment",
    "versions",    "packages",     "host"};
// Suffix of a generator's state.
constexpr absl::string_view kNeverDrawn = ", never drawn from";
// Observations in a step of a server, which are not settings.
constexpr std::array<absl::string_view, 2> kObserved = {"kv cache", "tokens"};
// Sections that every step records.
constexpr std::array<absl::string_view, 3> kOfEveryStep = {
    "batch", "random state", "learning rate"};

template <size_t n>
size_t Position(const std::array<absl::string_view, n>& list,
                absl::string_view section) {
  return static_cast<size_t>(absl::c_find(list, section) - list.begin());
}

size_t Weight(absl::string_view section) {
  const size_t first = Position(kChangesNumbers, section);
  if (first < kChangesNumbers.size()) return first;
  const size_t second = Position(kMayChangeNumbers, section);
  return kChangesNumbers.size() +
         (second < kMayChangeNumbers.size() ? 1 + second : 0);
}

bool IsOfEveryStep(absl::string_view section) {
  return Position(kOfEveryStep, section) < kOfEveryStep.size();
}

absl::Status AddCard(FileSystem* file_system, const std::string& path,
                     int64_t step, Card* card) {
  RP_ASSIGN_OR_RETURN(std::string text, ReadInput(file_system, path));
  JsonDocument document;
  const absl::Status parsed = document.Parse(std::move(text));
  if (!parsed.ok() || !document.root().is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a run card, an object of sections"));
  }
  for (const JsonMember& section : document.root().fields()) {
    if (absl::c_linear_search(kObserved, section.key)) continue;
    for (const JsonMember& fact : section.value.fields()) {
      if (!fact.value.is_string()) continue;
      FactName name(std::string(section.key), std::string(fact.key));
      if (IsOfEveryStep(section.key)) {
        card->steps[step].insert_or_assign(std::move(name),
                                           std::string(fact.value.text));
      } else {
        card->once.try_emplace(std::move(name), fact.value.text);
      }
    }
  }
  return absl::OkStatus();
}

Cards ReadCards(FileSystem* file_system, const DumpLayout& layout) {
  Cards cards;
  for (const DumpPlace& place : layout.places) {
    const std::string path = place.directory + "/run_card.json";
    if (place.process || !file_system->Exists(path)) continue;
    const absl::Status status =
        AddCard(file_system, path, place.step, &cards.ranks[place.rank]);
    if (!status.ok()) cards.unread.emplace_back(status.message());
  }
  return cards;
}

// The agent appends this to the state.
bool WasDrawnFrom(absl::string_view state) {
  return !absl::EndsWith(state, kNeverDrawn);
}

// Joins differences with the same values on several ranks into one.
class Collector {
 public:
  void Compare(const Facts& target, const Facts& reference, int64_t rank,
               int64_t step) {
    auto t = target.begin();
    auto r = reference.begin();
    while (t != target.end() || r != reference.end()) {
      const bool only_target =
          r == reference.end() || (t != target.end() && t->first < r->first);
      const bool only_reference =
          !only_target && (t == target.end() || r->first < t->first);
      ++compared_;
      if (only_target) {
        Add(t->first, t->second, "", rank, step);
      } else if (only_reference) {
        Add(r->first, "", r->second, rank, step);
      } else if (t->second != r->second &&
                 // Two states of a generator that was never used count as
                 // equal.
                 (WasDrawnFrom(t->second) || WasDrawnFrom(r->second))) {
        Add(t->first, t->second, r->second, rank, step);
      }
      if (!only_reference) ++t;
      if (!only_target) ++r;
    }
  }

  void Write(v1::RunCardReport* report) && {
    std::vector<std::pair<Key, std::set<int64_t>>> sorted(
        std::make_move_iterator(found_.begin()),
        std::make_move_iterator(found_.end()));
    absl::c_stable_sort(sorted, [](const auto& a, const auto& b) {
      const auto rank = [](const Key& key) {
        return std::make_pair(Weight(std::get<0>(key).first), std::get<1>(key));
      };
      return rank(a.first) < rank(b.first);
    });
    for (auto& [key, ranks] : sorted) {
      Difference* out = report->add_differences();
      out->set_section(std::get<0>(key).first);
      out->set_name(std::get<0>(key).second);
      out->set_step(std::get<1>(key));
      out->set_target(std::get<2>(key));
      out->set_reference(std::get<3>(key));
      for (const int64_t rank : ranks) out->add_ranks(rank);
    }
    report->set_facts_compared(compared_);
  }

 private:
  // Fact, step, and the values of the target and the reference.
  using Key = std::tuple<FactName, int64_t, std::string, std::string>;

  void Add(const FactName& name, const std::string& target,
           const std::string& reference, int64_t rank, int64_t step) {
    // For facts of every step, only a rank's first difference is kept.
    if (step >= 0 && !told_.emplace(name, rank).second) return;
    found_[{name, step, target, reference}].insert(rank);
  }

  std::map<Key, std::set<int64_t>> found_;
  std::set<std::pair<FactName, int64_t>> told_;
  int64_t compared_ = 0;
};

// Whether a generator is never used: its state is the same in several steps.
bool IsUnused(const Cards& cards, const FactName& generator) {
  bool several = false;
  for (const auto& [rank, card] : cards.ranks) {
    const std::string* first = nullptr;
    for (const auto& [step, facts] : card.steps) {
      const auto state = facts.find(generator);
      if (state == facts.end()) continue;
      if (first != nullptr && *first != state->second) return false;
      several = several || first != nullptr;
      first = &state->second;
    }
  }
  return several;
}

bool Explains(const Difference& difference, Unlike what, bool data_differ,
              const std::vector<Cards>& cards) {
  const std::string& section = difference.section();
  const bool is_data = section == "batch" || section == "weights";
  if (section == "random state") {
    // Calls use the numbers that PyTorch draws; those of NumPy and Python
    // affect a step only through its batch and its weights.
    const bool torch = absl::StrContains(difference.name(), "torch") ||
                       absl::StrContains(difference.name(), "cuda");
    if (!torch && !data_differ) return false;
    for (const Cards& side : cards) {
      if (IsUnused(side, {section, difference.name()})) return false;
    }
    return what != Unlike::kArgument;
  }
  switch (what) {
    case Unlike::kAnything:
    case Unlike::kInput:
      return ChangesNumbers(section);
    case Unlike::kArgument:
      return !is_data &&
             (ChangesNumbers(section) || section == "command line" ||
              section == "environment");
    case Unlike::kOwn:
      // The call's inputs match, so batch and weights are ruled out.
      return !is_data && section != "host";
    case Unlike::kUnclear:
      return section != "host";
  }
  return false;
}

std::string RanksText(const Difference& difference) {
  const int count = difference.ranks_size();
  if (count == 1) return absl::StrCat("rank ", difference.ranks(0));
  const bool run =
      count > 2 &&
      difference.ranks(count - 1) - difference.ranks(0) == count - 1;
  return absl::StrCat("ranks ", run ? absl::StrCat(difference.ranks(0), "-",
                                                   difference.ranks(count - 1))
                                    : absl::StrJoin(difference.ranks(), ","));
}

}  // namespace

bool ChangesNumbers(absl::string_view section) {
  return Position(kChangesNumbers, section) < kChangesNumbers.size();
}

absl::StatusOr<v1::RunCardReport> CompareRunCards(FileSystem* file_system,
                                                  const DumpLayout& target,
                                                  const DumpLayout& reference) {
  const Cards a = ReadCards(file_system, target);
  const Cards b = ReadCards(file_system, reference);
  for (const auto& [cards, layout] :
       {std::make_pair(&a, &target), std::make_pair(&b, &reference)}) {
    if (cards->ranks.empty() && cards->unread.empty()) {
      return absl::NotFoundError(absl::StrCat(
          layout->path,
          ": no rank has a run_card.json; dumps of msprobe and of C++ programs "
          "have none"));
    }
  }
  v1::RunCardReport report = CompareCards(a, b);
  if (target.kind == DumpLayout::Kind::kSteps) return report;
  // A layout of one step does not number it, and the other side may have
  // another number.
  for (Difference& difference : *report.mutable_differences()) {
    if (difference.step() >= 0) difference.set_step(StepOf(target.places[0]));
  }
  return report;
}

v1::RunCardReport CompareCards(const Cards& a, const Cards& b) {
  v1::RunCardReport report;
  Collector collector;
  std::set<int64_t> steps;
  for (const auto& [rank, card] : a.ranks) {
    const auto other = b.ranks.find(rank);
    if (other == b.ranks.end()) continue;
    report.set_ranks_compared(report.ranks_compared() + 1);
    if (card.once.empty() != other->second.once.empty()) {
      report.add_unseen(absl::StrCat(
          "rank ", rank, " of the ", card.once.empty() ? "target" : "reference",
          " says what it is in a step that this dump does not hold"));
    } else {
      collector.Compare(card.once, other->second.once, rank, /*step=*/-1);
    }
    for (const auto& [step, facts] : card.steps) {
      const auto same = other->second.steps.find(step);
      if (same == other->second.steps.end()) continue;
      steps.insert(step);
      collector.Compare(facts, same->second, rank, step);
    }
  }
  std::move(collector).Write(&report);
  report.set_steps_compared(static_cast<int64_t>(steps.size()));
  for (const auto& [cards, others, side] :
       {std::make_tuple(&a, &b, "target"),
        std::make_tuple(&b, &a, "reference")}) {
    std::vector<int64_t> alone;
    for (const auto& [rank, card] : cards->ranks)
      if (others->ranks.count(rank) == 0) alone.push_back(rank);
    if (!alone.empty()) {
      report.add_unseen(absl::StrCat("only the ", side, " has rank ",
                                     absl::StrJoin(alone, ",")));
    }
    for (const std::string& text : cards->unread) report.add_unseen(text);
  }
  // Packs that were made without the program have no steps.
  const auto has_steps = [](const Cards& cards) {
    return absl::c_any_of(cards.ranks, [](const auto& rank) {
      return !rank.second.steps.empty();
    });
  };
  if (report.steps_compared() == 0 && (has_steps(a) || has_steps(b)))
    report.add_unseen("no step is on both sides");
  return report;
}

std::string DifferenceText(const Difference& difference) {
  const auto value = [](const std::string& text) {
    return text.empty() ? std::string("(absent)") : OneLine(text);
  };
  return absl::StrCat(
      OneLine(difference.section()), " ", OneLine(difference.name()), ", ",
      difference.step() < 0 ? ""
                            : absl::StrCat("step ", difference.step(), ", "),
      RanksText(difference), ": ", value(difference.target()), " | ",
      value(difference.reference()));
}

std::vector<std::string> CardExplanations(FileSystem* file_system,
                                          const DumpLayout& target,
                                          const DumpLayout& reference,
                                          Unlike what, size_t most) {
  std::vector<std::string> out;
  // Ranks of another layout hold other weights and batches.
  if (target.Ranks() != reference.Ranks()) return out;
  const absl::StatusOr<v1::RunCardReport> report =
      CompareRunCards(file_system, target, reference);
  if (!report.ok()) return out;
  const std::vector<Cards> cards = {ReadCards(file_system, target),
                                    ReadCards(file_system, reference)};
  const bool data_differ =
      absl::c_any_of(report->differences(), [](const Difference& d) {
        return d.section() == "batch" || d.section() == "weights";
      });
  for (const Difference& difference : report->differences()) {
    if (out.size() >= most) break;
    if (Explains(difference, what, data_differ, cards))
      out.push_back(DifferenceText(difference));
  }
  return out;
}

std::vector<std::vector<int64_t>> ReplicasByCards(FileSystem* file_system,
                                                  const DumpLayout& layout) {
  // A process declares it with the first step that it records.
  DumpLayout first = layout;
  first.places.clear();
  std::set<int64_t> seen;
  for (const DumpPlace& place : layout.places) {
    if (!place.process && seen.insert(place.rank).second)
      first.places.push_back(place);
  }
  std::map<std::vector<int64_t>, std::set<int64_t>> said_by;
  for (const auto& [rank, card] : ReadCards(file_system, first).ranks) {
    const auto said = card.once.find({"world", "replicas"});
    if (said == card.once.end()) continue;
    std::vector<int64_t> group;
    for (const absl::string_view word : absl::StrSplit(said->second, ',')) {
      int64_t other = 0;
      if (absl::SimpleAtoi(word, &other)) group.push_back(other);
    }
    said_by[std::move(group)].insert(rank);
  }
  std::vector<std::vector<int64_t>> groups;
  std::set<int64_t> placed;
  for (const auto& [group, ranks] : said_by) {
    for (const int64_t rank : group) {
      if (!placed.insert(rank).second) return {};
    }
    std::vector<int64_t> here(ranks.begin(), ranks.end());
    if (absl::c_any_of(here, [&g = group](int64_t rank) {
          return !absl::c_linear_search(g, rank);
        }))
      return {};
    if (here.size() > 1) groups.push_back(std::move(here));
  }
  return groups;
}

}  // namespace rankprobe::analysis
