// SPDX-License-Identifier: Apache-2.0
#include "cli/output/run_card_text.h"

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "analysis/run_card/run_card.h"
#include "cli/output/output.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

// Lines of one section without --all.
constexpr int kShownOfSection = 8;

std::vector<std::string> LinesOf(FileSystem* file_system,
                                 const DumpLayout& target,
                                 const DumpLayout& reference,
                                 analysis::Unlike what) {
  return analysis::CardExplanations(file_system, target, reference, what,
                                    kShownExplanations);
}

}  // namespace

void PrintRunCards(const v1::RunCardReport& report, bool all) {
  std::map<std::string, int> shown;
  for (const auto& difference : report.differences()) {
    if (++shown[difference.section()] <= kShownOfSection || all)
      Print(stdout, "%s\n", analysis::DifferenceText(difference).c_str());
  }
  for (const auto& [section, count] : shown) {
    if (count > kShownOfSection && !all) {
      Print(stdout, "%s: %d more (--all shows them)\n", section.c_str(),
            count - kShownOfSection);
    }
  }
  for (const std::string& text : report.unseen())
    Print(stdout, "not compared: %s\n", text.c_str());
  Print(stdout, "%s in %s of %s, %s\n",
        Counted(report.differences_size(), "difference"),
        Counted(report.facts_compared(), "fact"),
        Counted(report.ranks_compared(), "rank"),
        Counted(report.steps_compared(), "step"));
}

void PrintCardExplanations(FileSystem* file_system, const DumpLayout& target,
                           const DumpLayout& reference, analysis::Unlike what) {
  PrintExplanations(LinesOf(file_system, target, reference, what));
}

std::vector<std::string> ExplanationsOf(
    FileSystem* file_system, const DumpLayout& target,
    const DumpLayout& reference, const analysis::DivergenceReport& report) {
  using analysis::Unlike;
  if (report.origins.empty())
    return LinesOf(file_system, target, reference, Unlike::kAnything);
  const analysis::Divergence& first = report.origins.front();
  const bool unclear = first.inputs_infinite + first.inputs_unknown > 0;
  return LinesOf(file_system, target, reference,
                 first.is_argument        ? Unlike::kArgument
                 : !first.made_by.empty() ? Unlike::kOwn
                 : first.from_outside     ? Unlike::kInput
                 : unclear                ? Unlike::kUnclear
                                          : Unlike::kOwn);
}

void PrintExplanations(const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  Print(stdout,
        "The runs differ in what can explain this (all: rankprobe "
        "config_check):\n");
  for (const std::string& line : lines) Print(stdout, "  %s\n", line);
}

}  // namespace rankprobe
