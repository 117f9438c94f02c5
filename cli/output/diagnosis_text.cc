// SPDX-License-Identifier: Apache-2.0
#include "cli/output/diagnosis_text.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "cli/output/output.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

constexpr int kShownNumbers = 6;
// A longer list is cut, unless that would leave out fewer items than this.
constexpr size_t kShownList = 200;
constexpr int64_t kLeastLeftOut = 4;

// Cuts a long list, so that the answer stays on one screen.
std::string Shortened(absl::string_view text) {
  if (text.size() <= kShownList) return std::string(text);
  const absl::string_view separator =
      absl::StrContains(text, "; ") ? "; " : ", ";
  const size_t end = text.rfind(separator, kShownList);
  if (end == absl::string_view::npos) return std::string(text);
  int64_t left_out = 0;
  for (size_t at = end; at != absl::string_view::npos;
       at = text.find(separator, at + 1))
    ++left_out;
  if (left_out < kLeastLeftOut) return std::string(text);
  return absl::StrCat(text.substr(0, end), separator, "and ", left_out,
                      " more (--json lists them)");
}

void PrintFinding(const v1::DiagnoseReport::Finding& finding,
                  const char* title) {
  Print(stdout, "%s: step %d%s, %s%s\n", title, finding.step(),
        finding.has_rank() ? absl::StrCat(" rank ", finding.rank()) : "",
        finding.name(),
        finding.module().empty() ? "" : absl::StrCat(" in ", finding.module()));
  Print(stdout, "  %s\n", finding.what());
  if (!finding.code_line().empty())
    Print(stdout, "  at %s\n", finding.code_line());
  for (int i = 0; i < finding.numbers_size() && i < kShownNumbers; ++i)
    Print(stdout, "  %s\n", finding.numbers(i));
  Print(stdout, "  %s, by %s\n",
        finding.sure() == "exact" ? "exact: numbers, not a guess"
                                  : "worth a look: it is not proof of a fault",
        finding.by());
  if (!finding.command().empty())
    Print(stdout, "  numbers: %s\n", finding.command());
}

}  // namespace

void PrintDiagnosis(const v1::DiagnoseReport& report, const std::string& ended,
                    int limit) {
  const auto is_exact = [](const v1::DiagnoseReport::Finding& finding) {
    return finding.sure() == "exact";
  };
  for (const std::string& note : report.notes()) Print(stdout, "%s.\n", note);
  if (!ended.empty()) Print(stdout, "Ended early: %s\n", ended);
  const char* const otherwise = ended.empty() ? "" : " else";
  if (report.findings().empty()) {
    Print(stdout, "Nothing%s was found in what was recorded.\n", otherwise);
  } else if (!is_exact(report.findings(0))) {
    Print(stdout,
          "Nothing%s is certainly wrong in what was recorded; worth a look: "
          "%d.\n",
          otherwise, report.findings_size());
  }
  for (int i = 0; i < report.findings_size(); ++i) {
    if (limit > 0 && i >= limit) {
      Print(stdout, "%d more findings: --limit 0\n",
            report.findings_size() - limit);
      break;
    }
    const bool exact = is_exact(report.findings(i));
    PrintFinding(report.findings(i), !exact   ? "Worth a look"
                                     : i == 0 ? "First"
                                              : "Then");
  }
  for (const std::string& text : report.healthy())
    Print(stdout, "Sound: %s\n", Shortened(text));
  for (int i = 0; i < report.unjudged_size(); ++i) {
    const v1::DiagnoseReport::Unjudged& unjudged = report.unjudged(i);
    Print(stdout, "Not judged: %s\n", Shortened(unjudged.what()));
    // Successive entries that need the same command share it.
    const bool is_last = i + 1 == report.unjudged_size() ||
                         report.unjudged(i + 1).record() != unjudged.record();
    if (!unjudged.record().empty() && is_last)
      Print(stdout, "  to record it: %s\n", unjudged.record());
    if (!unjudged.judge().empty())
      Print(stdout, "  to judge it: %s\n", unjudged.judge());
  }
}

std::string ScanFindingText(const analysis::ScanFinding& finding) {
  using Kind = analysis::ScanKind;
  const std::string ranks =
      finding.of_group.empty()
          ? ""
          : absl::StrCat(" of ranks ", absl::StrJoin(finding.of_group, ","));
  std::string what;
  switch (finding.kind) {
    case Kind::kNonFinite:
      what = absl::StrCat("is ", finding.now);
      break;
    case Kind::kRanksPart:
      what = absl::StrCat("was the same on the replicas", ranks,
                          " and no longer is: norms ", finding.before, " to ",
                          finding.now);
      break;
    case Kind::kNotAlike:
      what = absl::StrCat(
          "is never the same on the ranks, while its "
          "parameter is: norms ",
          finding.before, " to ", finding.now);
      break;
    case Kind::kChanged:
      what = absl::StrCat(
          "is not what the optimizer left in the step "
          "before: norm ",
          finding.now, ", and was ", finding.before);
      break;
    case Kind::kNoMore:
      what = "disappeared: state of the optimizer that was lost";
      break;
    case Kind::kVanished:
      what = absl::StrCat("is 0 from this step on; before it was ",
                          finding.before);
      break;
    case Kind::kRankMoves:
      what = absl::StrCat("leaves the other ranks: norm ", finding.now,
                          ", usually ", finding.before);
      break;
    case Kind::kMove:
      what = absl::StrCat("moves off its course: norm ", finding.now,
                          ", usually ", finding.before);
      break;
  }
  if (finding.others > 0)
    absl::StrAppend(&what, " (", Counted(finding.others, "other value"),
                    " too)");
  return what;
}

}  // namespace rankprobe
