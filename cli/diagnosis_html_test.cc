// SPDX-License-Identifier: Apache-2.0
#include "cli/output/diagnosis_html.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;

std::string PageOf(const v1::DiagnoseReport& report) {
  return DiagnosisHtml(report, {.input = "run:<train>",
                                .command = "rankprobe diagnose 'run:<train>'",
                                .ended = "",
                                .time = absl::UnixEpoch()});
}

v1::DiagnoseReport::Finding* Add(v1::DiagnoseReport* report,
                                 const std::string& name) {
  v1::DiagnoseReport::Finding* const finding = report->add_findings();
  finding->set_by("scan: changed");
  finding->set_sure("exact");
  finding->set_step(7);
  finding->set_name(name);
  finding->set_command("rankprobe query --run train 'a*'");
  return finding;
}

TEST(DiagnosisHtmlTest, EachFindingHasItsCommand) {
  v1::DiagnoseReport report;
  Add(&report, "Parameter.a");
  Add(&report, "Parameter.b")->set_sure("likely");
  v1::DiagnoseReport::Unjudged* const unjudged = report.add_unjudged();
  unjudged->set_what("the rest");
  unjudged->set_record("rankprobe run --monitor -- PROGRAM");
  const std::string page = PageOf(report);
  EXPECT_THAT(page, HasSubstr("First: step 7</strong> <code>Parameter.a"));
  EXPECT_THAT(page, HasSubstr("Worth a look: step 7"));
  EXPECT_THAT(page, HasSubstr("<code>rankprobe query --run train 'a*'</code>"));
  EXPECT_THAT(page, HasSubstr("to record it:<p class=\"command\"><code>"
                              "rankprobe run --monitor -- PROGRAM</code>"));
  EXPECT_THAT(page, HasSubstr("1970-01-01 00:00:00 UTC"));
}

TEST(DiagnosisHtmlTest, NothingFromOutsideIsMarkup) {
  v1::DiagnoseReport report;
  Add(&report, "<script>alert(1)</script>")->set_module("\"><img src=x>");
  report.add_healthy("<b>\x1b[2J");
  const std::string page = PageOf(report);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(page, HasSubstr("run:&lt;train&gt;"));
}

TEST(DiagnosisHtmlTest, TheLargestAnswerIsBelowAMegabyte) {
  v1::DiagnoseReport report;
  const std::string text(3000, '"');
  for (int i = 0; i < 300; ++i) {
    v1::DiagnoseReport::Finding* const finding = Add(&report, text);
    finding->set_what(text);
    for (int k = 0; k < 100; ++k) finding->add_numbers(text);
    report.add_healthy(text);
    report.add_unjudged()->set_what(text);
  }
  const std::string page = PageOf(report);
  EXPECT_THAT(page.size(), Lt(size_t{1000000}));
  EXPECT_THAT(page, HasSubstr(" more findings: the command with --json"));
  EXPECT_THAT(page, HasSubstr("76 more lines: --json has them"));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST(DiagnosisHtmlTest, ASoundAnswerSaysSo) {
  v1::DiagnoseReport report;
  report.add_healthy("nothing moves");
  EXPECT_THAT(PageOf(report), HasSubstr("Nothing was found in what was"));
  EXPECT_THAT(PageOf(report), HasSubstr("<li>nothing moves</li>"));
}

}  // namespace
}  // namespace rankprobe
