// SPDX-License-Identifier: Apache-2.0
#include "cli/output/diagnosis_html.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/version.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A finding of the longest texts fits into the rest of 1 MB: each byte becomes
// at most six of HTML.
constexpr size_t kMostBytes = 600 << 10;
constexpr size_t kMostTextBytes = 1500;
constexpr int kMostNumbers = 24;

// The colours of the page for browsers (web/app/app.css).
constexpr absl::string_view kStyle = R"(
:root { color-scheme: light dark; --back: #fff; --panel: #f6f7f9; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --good: #116329; --bad: #b3161b; --warn: #7d4e00; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1318; --panel: #181d24; --ink: #e6edf3; --soft: #9ba7b4;
  --line: #333c47; --good: #6fdd8b; --bad: #ff9a93; --warn: #f0c05a; } }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; } p { margin: .3rem 0; }
article { border: 1px solid var(--line); border-left: 5px solid var(--warn); border-radius: 6px; padding: .5rem .8rem;
  margin: .6rem 0; break-inside: avoid; }
article.exact { border-left-color: var(--bad); } .verdict { font-weight: 600; color: var(--good); }
.verdict.exact { color: var(--bad); } .verdict.likely { color: var(--warn); } .note, footer { color: var(--soft); }
footer { margin-top: 1.5rem; border-top: 1px solid var(--line); padding-top: .5rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { background: var(--panel); border-radius: 6px; padding: .5rem; margin: .3rem 0; }
p.command code::before { content: "$ "; color: var(--soft); } li { margin: .2rem 0; break-inside: avoid; }
@media print { :root { --back: #fff; --panel: #fff; --ink: #000; --soft: #444; --line: #999; --good: #000; --bad: #000;
  --warn: #000; color-scheme: light; } body { max-width: none; padding: 0; } pre { border: 1px solid var(--line); } }
)";

std::string Text(absl::string_view untrusted) {
  const bool is_long = untrusted.size() > kMostTextBytes;
  return absl::StrCat(
      absl::StrReplaceAll(
          VisibleText(untrusted.substr(0, kMostTextBytes)),
          {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}}),
      is_long ? "…" : "");
}

std::string Command(absl::string_view command) {
  return command.empty() ? ""
                         : absl::StrCat("<p class=\"command\"><code>",
                                        Text(command), "</code></p>\n");
}

std::string FindingHtml(const v1::DiagnoseReport::Finding& finding,
                        absl::string_view title) {
  const bool exact = finding.sure() == "exact";
  std::string out = absl::StrCat(
      "<article class=\"", exact ? "exact" : "likely", "\">\n<p><strong>",
      title, ": step ", finding.step(),
      finding.has_rank() ? absl::StrCat(", rank ", finding.rank()) : "",
      "</strong> <code>", Text(finding.name()), "</code>",
      finding.module().empty()
          ? ""
          : absl::StrCat(" <span class=\"note\">in ", Text(finding.module()),
                         "</span>"),
      "</p>\n<p>", Text(finding.what()), "</p>\n");
  if (!finding.code_line().empty()) {
    absl::StrAppend(&out, "<p><code>", Text(finding.code_line()),
                    "</code></p>\n");
  }
  if (!finding.numbers().empty()) {
    absl::StrAppend(&out, "<pre>");
    for (int i = 0; i < finding.numbers_size() && i < kMostNumbers; ++i)
      absl::StrAppend(&out, Text(finding.numbers(i)), "\n");
    if (finding.numbers_size() > kMostNumbers) {
      absl::StrAppend(&out, finding.numbers_size() - kMostNumbers,
                      " more lines: --json has them\n");
    }
    absl::StrAppend(&out, "</pre>\n");
  }
  absl::StrAppend(&out, "<p class=\"note\">",
                  exact ? "exact: numbers, not a guess"
                        : "worth a look: it is not proof of a fault",
                  "; found by ", Text(finding.by()), "</p>\n",
                  Command(finding.command()), "</article>\n");
  return out;
}

std::string Verdict(const v1::DiagnoseReport& report, bool ended) {
  const char* const otherwise = ended ? " else" : "";
  if (report.findings().empty()) {
    return absl::StrCat("<p class=\"verdict\">Nothing", otherwise,
                        " was found in what was recorded.</p>\n");
  }
  if (report.findings(0).sure() != "exact") {
    return absl::StrCat("<p class=\"verdict likely\">Nothing", otherwise,
                        " is certainly wrong in what was recorded; worth a "
                        "look: ",
                        report.findings_size(), "</p>\n");
  }
  return "<p class=\"verdict exact\">Something is wrong. The first finding is "
         "the likely cause.</p>\n";
}

// The part of a list that fits into the page.
class Items {
 public:
  explicit Items(std::string* out) : out_(out) {}
  void Add(const std::string& html) {
    if (out_->size() + html.size() > kMostBytes) {
      ++left_out_;
    } else {
      out_->append(html);
    }
  }
  int left_out() const { return left_out_; }

 private:
  std::string* const out_;
  int left_out_ = 0;
};

void AddFindings(const v1::DiagnoseReport& report, std::string* out) {
  Items items(out);
  bool is_first = true;
  for (const v1::DiagnoseReport::Finding& finding : report.findings()) {
    items.Add(FindingHtml(finding, finding.sure() != "exact" ? "Worth a look"
                                   : is_first                ? "First"
                                                             : "Then"));
    is_first = false;
  }
  if (items.left_out() > 0) {
    absl::StrAppend(out, "<p>", items.left_out(),
                    " more findings: the command with --json has them.</p>\n");
  }
}

void AddSound(const v1::DiagnoseReport& report, std::string* out) {
  if (report.healthy().empty()) return;
  absl::StrAppend(out, "<h2>Sound</h2>\n<ul>\n");
  Items items(out);
  for (const std::string& text : report.healthy())
    items.Add(absl::StrCat("<li>", Text(text), "</li>\n"));
  absl::StrAppend(out, "</ul>\n");
}

void AddUnjudged(const v1::DiagnoseReport& report, std::string* out) {
  if (report.unjudged().empty()) return;
  absl::StrAppend(out, "<h2>Not judged</h2>\n<ul>\n");
  Items items(out);
  for (const v1::DiagnoseReport::Unjudged& one : report.unjudged()) {
    items.Add(absl::StrCat(
        "<li>", Text(one.what()),
        one.judge().empty() && one.record().empty() ? ""
        : one.judge().empty()                       ? "; to record it:"
                                                    : "; to judge it:",
        Command(one.judge().empty() ? one.record() : one.judge()), "</li>\n"));
  }
  absl::StrAppend(out, "</ul>\n");
}

}  // namespace

std::string DiagnosisHtml(const v1::DiagnoseReport& report,
                          const DiagnosisPage& page) {
  std::string out = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta "
      "charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\">\n<title>rankprobe diagnose ",
      Text(page.input), "</title>\n<style>", kStyle,
      "</style>\n</head>\n<body>\n<main>\n<h1>Diagnosis of ", Text(page.input),
      "</h1>\n");
  for (const std::string& note : report.notes())
    absl::StrAppend(&out, "<p>", Text(note), ".</p>\n");
  absl::StrAppend(&out, Verdict(report, !page.ended.empty()));
  if (!page.ended.empty())
    absl::StrAppend(&out, "<p>Ended early: ", Text(page.ended), "</p>\n");
  absl::StrAppend(&out, Command(page.command));
  AddFindings(report, &out);
  AddSound(report, &out);
  AddUnjudged(report, &out);
  absl::StrAppend(
      &out, "</main>\n<footer>rankprobe ", Version(), ", ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", page.time, absl::UTCTimeZone()),
      "</footer>\n</body>\n</html>\n");
  return out;
}

}  // namespace rankprobe
