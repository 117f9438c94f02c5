// SPDX-License-Identifier: Apache-2.0
#include "cli/client/run_rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/rules/rule.h"
#include "cli/client/run_scope.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

// Cells of one statistic over all ranks; more are not read.
constexpr size_t kMostRankCells = 4000000;
constexpr size_t kMostRanksOfRules = 64;

using analysis::RankCell;

bool HasRanks(const analysis::ScanInput& input) {
  return absl::c_any_of(input.values, [](const auto& series) {
    return absl::c_any_of(series.cells,
                          [](const auto& cell) { return cell.count > 1; });
  });
}

// Reads the columns of steps and ranks that have any value.
absl::StatusOr<analysis::RankInput> ReadRankInput(const Globals& globals,
                                                  const RunScanRequest& request,
                                                  const RunScan& scan) {
  analysis::RankInput input;
  input.steps = scan.input.steps;
  RP_ASSIGN_OR_RETURN(std::vector<int64_t> ranks,
                      ReadRankNumbers(globals, request, scan));
  // The program is one process, not two that recorded the same steps.
  if (ranks.empty() && !HasRanks(scan.input)) ranks.push_back(0);
  if (ranks.size() > kMostRanksOfRules || !scan.input.each_step ||
      ranks.size() * scan.input.values.size() * input.steps.size() >
          kMostRankCells)
    return input;
  for (const int64_t rank : ranks) {
    RunScanRequest of_rank = request;
    if (ranks.size() > 1) of_rank.ranks = {rank};
    of_rank.from_step = input.steps.front();
    of_rank.to_step = input.steps.back();
    analysis::RankSeries values;
    values.rank = rank;
    const auto read = [&](const char* statistic, double RankCell::*number) {
      return ReadStatistic(
          globals, of_rank, statistic,
          [&](const std::string& name, const std::vector<int64_t>& steps,
              const std::vector<double>& numbers,
              const std::vector<bool>& is_there) {
            std::vector<RankCell>& cells = values.values[name];
            cells.resize(input.steps.size());
            for (size_t i = 0; i < steps.size(); ++i) {
              const auto at = absl::c_lower_bound(input.steps, steps[i]);
              if (!is_there[i] || at == input.steps.end() || *at != steps[i])
                continue;
              RankCell& cell =
                  cells[static_cast<size_t>(at - input.steps.begin())];
              cell.is_there = true;
              cell.*number = numbers[i];
            }
          });
    };
    RP_RETURN_IF_ERROR(read("Norm", &RankCell::norm));
    RP_RETURN_IF_ERROR(read("Mean", &RankCell::mean));
    RP_RETURN_IF_ERROR(read("Max", &RankCell::largest));
    RP_RETURN_IF_ERROR(read("Min", &RankCell::smallest));
    input.ranks.push_back(std::move(values));
  }
  return input;
}

class Asked {
 public:
  // `needs` are words of monitor.values.
  void NotJudged(absl::string_view name, absl::string_view needs) {
    if (seen_.insert(std::string(name)).second)
      rules_.without_values[std::string(needs)].emplace_back(name);
  }
  void TooFewSteps(absl::string_view name, absl::string_view needs) {
    if (seen_.insert(std::string(name)).second)
      rules_.without_steps[std::string(needs)].emplace_back(name);
  }
  // `ranks` is empty or a text such as " of ranks 0,1".
  template <typename Rule>
  void NothingFound(const Rule& rule, const std::string& ranks) {
    if (rule.has_judged()) {
      rules_.kept.push_back(absl::StrCat(rule.name(), ranks));
    } else if (seen_.insert(std::string(rule.name())).second) {
      rules_.without_subject[std::string(rule.subject())].emplace_back(
          rule.name());
    }
  }
  void Found(absl::string_view name, analysis::RankFinding finding) {
    if (finding.others > 0) {
      absl::StrAppend(
          &finding.what, " (", finding.others,
          finding.others == 1 ? " other value too)" : " other values too)");
    }
    rules_.findings.emplace_back(std::string(name), std::move(finding));
  }
  RunRules Take() { return std::move(rules_); }

 private:
  RunRules rules_;
  std::set<std::string> seen_;
};

std::string RanksText(const std::vector<int64_t>& group) {
  return group.empty() ? ""
                       : absl::StrCat(" of ranks ", absl::StrJoin(group, ","));
}

// Applies the rules that use the largest and the smallest value of a group's
// ranks.
void AskGroup(const analysis::ScanInput& norms, const std::string& ranks,
              Asked* asked) {
  analysis::RuleInput input;
  input.norms = &norms;
  for (const auto& rule : analysis::AllRules()) {
    if (rule->IsOfRanks() && !HasRanks(norms)) continue;
    if (!rule->CanJudge(input)) {
      asked->NotJudged(rule->name(), rule->needs());
      continue;
    }
    const std::string more = StepsShort(rule->LeastSteps(), false, norms.steps);
    if (!more.empty()) {
      asked->TooFewSteps(rule->name(), more);
      continue;
    }
    const std::vector<analysis::RuleFinding> found = rule->Look(input);
    if (found.empty()) asked->NothingFound(*rule, ranks);
    for (const analysis::RuleFinding& f : found) {
      asked->Found(rule->name(),
                   {f.step, f.rank, f.name, absl::StrCat(f.what, ranks),
                    f.exact, f.others});
    }
  }
}

// Applies the rules that use the values of each rank.
void AskRanks(const analysis::RankInput& input, bool has_ranks, Asked* asked) {
  for (const auto& rule : analysis::AllRankRules()) {
    if (rule->IsOfRanks() && !has_ranks) continue;
    if (input.ranks.empty() || !rule->CanJudge(input)) {
      asked->NotJudged(rule->name(), rule->needs());
      continue;
    }
    const std::string more =
        StepsShort(rule->LeastSteps(), rule->NeedsEachStep(), input.steps);
    if (!more.empty()) {
      asked->TooFewSteps(rule->name(), more);
      continue;
    }
    std::vector<analysis::RankFinding> found = rule->Look(input);
    if (found.empty()) asked->NothingFound(*rule, "");
    for (analysis::RankFinding& f : found)
      asked->Found(rule->name(), std::move(f));
  }
}

}  // namespace

absl::StatusOr<RunRules> AskRules(const Globals& globals,
                                  const RunScanRequest& request,
                                  const RunScan& scan) {
  Asked asked;
  if (scan.groups.empty()) AskGroup(scan.input, "", &asked);
  for (const std::vector<int64_t>& group : scan.groups) {
    RunScanRequest of_group = request;
    of_group.ranks = group;
    of_group.from_step = scan.input.steps.front();
    of_group.to_step = scan.input.steps.back();
    RP_ASSIGN_OR_RETURN(const analysis::ScanInput norms,
                        ReadNorms(globals, of_group));
    AskGroup(norms, RanksText(group), &asked);
  }
  RP_ASSIGN_OR_RETURN(const analysis::RankInput input,
                      ReadRankInput(globals, request, scan));
  AskRanks(input, HasRanks(scan.input), &asked);
  return asked.Take();
}

analysis::ScanInput NormsOf(const analysis::RankInput& input) {
  std::map<std::string, std::vector<analysis::ScanCell>> values;
  for (const analysis::RankSeries& rank : input.ranks) {
    for (const auto& [name, cells] : rank.values) {
      std::vector<analysis::ScanCell>& all = values[name];
      all.resize(input.steps.size());
      for (size_t i = 0; i < cells.size(); ++i) {
        const double norm = cells[i].norm;
        if (!cells[i].is_there) continue;
        if (!std::isfinite(norm)) ++all[i].non_finite;
        const bool is_first = all[i].count++ == 0;
        all[i].largest = is_first ? norm : std::max(all[i].largest, norm);
        all[i].smallest = is_first ? norm : std::min(all[i].smallest, norm);
      }
    }
  }
  analysis::ScanInput norms;
  norms.steps = input.steps;
  for (auto& [name, cells] : values) {
    analysis::ScanSeries& series = norms.values.emplace_back();
    series.name = name;
    series.cells = std::move(cells);
  }
  return norms;
}

RunRules AskRules(const analysis::RankInput& input) {
  Asked asked;
  const std::vector<std::vector<size_t>> groups = analysis::ReplicasOf(input);
  for (const std::vector<size_t>& group : groups) {
    analysis::RankInput of_group;
    of_group.steps = input.steps;
    std::vector<int64_t> ranks;
    for (const size_t r : group) {
      of_group.ranks.push_back(input.ranks[r]);
      if (groups.size() > 1) ranks.push_back(input.ranks[r].rank);
    }
    AskGroup(NormsOf(of_group), RanksText(ranks), &asked);
  }
  AskRanks(input, input.ranks.size() > 1, &asked);
  return asked.Take();
}

void NoteTrainings(const RunScan& scan, DiagnosisReport* report) {
  if (scan.trainings.size() < 2) return;
  report->Note(absl::StrCat("the program trains ", scan.trainings.size(),
                            " models one after the other: only the longest "
                            "training is judged, steps ",
                            scan.input.steps.front(), " to ",
                            scan.input.steps.back()));
}

void AddRules(RunRules rules, const RunScan& scan, DiagnosisReport* report) {
  for (auto& [name, f] : rules.findings) {
    report->Add(absl::StrCat("rule: ", name), f.step, f.rank, f.name,
                std::move(f.what), f.exact);
  }
  if (!rules.kept.empty())
    report->Healthy(absl::StrCat("rules without a violation: ",
                                 absl::StrJoin(rules.kept, ", ")));
  AddUnjudgedRules(scan, rules, report);
}

void AddUnjudgedRules(const RunScan& scan, const RunRules& rules,
                      DiagnosisReport* report) {
  const std::string record = scan.is_monitored_whole ? "" : kMonitorCommand;
  const auto add = [&](const std::string& needs,
                       const std::vector<std::string>& names) {
    report->Unjudged(absl::StrCat("rules that need ", needs, ": ",
                                  absl::StrJoin(names, ", ")),
                     record);
  };
  std::vector<std::string> all;
  for (const auto& [needs, names] : rules.without_values)
    all.insert(all.end(), names.begin(), names.end());
  if (scan.is_monitored_whole) {
    if (!all.empty())
      report->Unjudged(absl::StrCat("rules whose values no recorded step has: ",
                                    absl::StrJoin(all, ", ")),
                       "");
  } else if (!all.empty() && !HasValuesOf(scan.input, "Training.") &&
             !HasValuesOf(scan.input, "Parameter.")) {
    report->Unjudged(
        absl::StrCat(Counted(all.size(), "rule"),
                     " on losses, gradients and parameters (docs/rules.md): "
                     "task monitor did not record this run"),
        record);
  } else {
    for (const auto& [needs, names] : rules.without_values)
      add(absl::StrCat(needs, " (monitor.values)"), names);
  }
  const auto add_grouped = [&](const std::string& what, const auto& rules_of,
                               const std::string& command) {
    std::vector<std::string> groups;
    groups.reserve(rules_of.size());
    for (const auto& [reason, names] : rules_of)
      groups.push_back(
          absl::StrCat(absl::StrJoin(names, ", "), " (", reason, ")"));
    if (!groups.empty())
      report->Unjudged(absl::StrCat(what, ": ", absl::StrJoin(groups, "; ")),
                       command);
  };
  add_grouped("rules with nothing to judge in this program",
              rules.without_subject, "");
  const bool successive = FollowEachOther(scan.input.steps);
  add_grouped(
      absl::StrCat("rules that need ",
                   successive ? "more steps" : "more or successive steps",
                   " (there are ", scan.head.steps(),
                   successive ? ")" : ", not all successive)"),
      rules.without_steps, record);
}

}  // namespace rankprobe
