// SPDX-License-Identifier: Apache-2.0
// Findings of `diagnose` about a dump, and the steps that it checks.
#include "cli/client/dump_diagnosis.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/testing/dump_text.h"
#include "cli/client/request_diagnosis.h"
#include "cli/client/run_rules.h"
#include "cli/output/diagnosis_text.h"
#include "dump_format/dump_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using rankprobe::testing::Call;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string FileOf(int64_t step) {
  return absl::StrCat(R"({"path":"step)", step, R"(/rank0/dump.json"})");
}

class DumpDiagnosisTest : public ::testing::Test {
 protected:
  void Sound(int64_t step, int64_t rank = 0) const {
    dir_.Write(absl::StrCat("d/step", step, "/rank", rank),
               {Call("Torch.exp.0.forward", "1", "2")});
  }
  void Nan(int64_t step) const {
    dir_.Write(absl::StrCat("d/step", step, "/rank0"),
               {Call("Torch.log.0.forward", "-1", "NaN")});
  }
  // A weight of 1,024 elements.
  void Weight(int64_t step, int64_t rank, const std::string& norm) const {
    dir_.Write(
        absl::StrCat("d/step", step, "/rank", rank),
        {absl::StrCat(
            R"("Module.m.M.forward.0":{"input_args":[],"input_kwargs":{},)",
            R"("output":[],"parameters":{"w":{"type":"torch.Tensor",)",
            R"("dtype":"torch.float32","shape":[32,32],"Max":)", norm,
            R"(,"Min":-)", norm, R"(,"Mean":0.1,"Norm":)", norm,
            R"(,"requires_grad":false}}})")});
  }
  v1::DiagnoseReport Diagnose(const std::string& name,
                              std::optional<int64_t> job = std::nullopt) const {
    DiagnosisReport report;
    const std::string path = absl::StrCat(dir_.path(), "/", name);
    const auto ended = DiagnoseDump(files_.get(), {path, path, job}, &report);
    EXPECT_TRUE(ended.ok()) << ended.status();
    return report.Take();
  }
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(DumpDiagnosisTest, EachStepIsLookedAtUntilTheFirstFinding) {
  for (int64_t step = 0; step < 80; ++step) Sound(step);
  v1::DiagnoseReport report = Diagnose("d");
  EXPECT_THAT(report.findings(), IsEmpty());
  ASSERT_THAT(report.healthy(), SizeIs(1));
  EXPECT_THAT(report.healthy(0), HasSubstr("no call of 80 steps"));
  Nan(40);
  Nan(41);
  report = Diagnose("d");
  ASSERT_THAT(report.findings(), SizeIs(1));
  EXPECT_EQ(report.findings(0).step(), 40);
  EXPECT_EQ(report.findings(0).name(), "Torch.log.0.forward");
  EXPECT_THAT(report.unjudged(), IsEmpty());
}

TEST_F(DumpDiagnosisTest, ADumpWithoutACallIsNotSound) {
  dir_.Write("d/step0/rank0", {});
  dir_.Write("d/step1/rank0", {});
  const v1::DiagnoseReport report = Diagnose("d");
  EXPECT_THAT(report.findings(), IsEmpty());
  EXPECT_THAT(report.healthy(), IsEmpty());
  ASSERT_THAT(report.unjudged(), SizeIs(1));
  EXPECT_EQ(report.unjudged(0).what(), "no call is recorded in 2 steps");
  EXPECT_THAT(report.unjudged(0).record(), HasSubstr("mix"));
}

// An export of a run that task monitor recorded has debug.json next to
// dump.json.
TEST_F(DumpDiagnosisTest, RulesJudgeWhatTaskMonitorWrote) {
  for (int64_t step = 0; step < 3; ++step) {
    Sound(step);
    const std::string kind = step == 1 ? "1" : "0";
    dir_.WriteFile(
        absl::StrCat("d/step", step, "/rank0/debug.json"),
        absl::StrCat(R"({"task":"statistics","data":{"Training.0.debug":{)",
                     R"("loss":)", rankprobe::testing::Tensor("3"),
                     R"(,"loss_of_probabilities":)",
                     rankprobe::testing::Tensor(kind), "}}}"));
  }
  const v1::DiagnoseReport report = Diagnose("d");
  ASSERT_THAT(report.findings(), SizeIs(1));
  EXPECT_EQ(report.findings(0).step(), 1);
  EXPECT_EQ(report.findings(0).by(), "rule: loss-of-probabilities");
  EXPECT_EQ(report.findings(0).name(),
            "Training.0.debug.loss_of_probabilities");
  EXPECT_THAT(report.unjudged(), Not(IsEmpty()));
}

TEST(DiagnosisReportTest, AParameterIsNamedWithTheModuleThatHasIt) {
  DiagnosisReport report;
  report.Add("scan: move", 1, -1, "Update.1.bias.0.debug.update", "", false);
  report.Add("scan: move", 2, -1, "Parameter.bias.0.debug.grad", "", false);
  report.Add("scan: move", 3, -1, "Training.0.debug.loss", "", false);
  std::vector<analysis::ScanSeries> values(2);
  values[0].name = "Module.1.Linear.forward.0.output.0";
  values[1].name = "Module.Bare.backward.0.input.0";
  report.NameOwners(values);
  const v1::DiagnoseReport said = report.Take();
  EXPECT_EQ(said.findings(0).module(), "1 (Linear)");
  EXPECT_EQ(said.findings(1).module(), "Bare");
  EXPECT_EQ(said.findings(2).module(), "");
}

// A difference from a reference that follows from a fault which a rule names.
TEST(DiagnosisReportTest, ACauseStandsBeforeTheDifferenceOfItsStep) {
  DiagnosisReport report;
  report.Add("first-divergence", 3, 0, "Module.fc.Linear.forward.0", "", true);
  report.Add("overflow_check", 3, 0, "Module.fc.Linear.forward.0", "", true);
  report.Add("rule: state-not-continued", 3, 0, "Update.fc.0", "", true);
  report.Add("rule: batch-repeated", 3, 0, "Training.0", "", false);
  report.Add("rule: micro-batches-lost", 4, 0, "Parameter.fc.0", "", true);
  const v1::DiagnoseReport said = report.Take();
  std::vector<std::string> by;
  for (const auto& finding : said.findings()) by.push_back(finding.by());
  EXPECT_THAT(by, ElementsAre("rule: state-not-continued", "first-divergence",
                              "overflow_check", "rule: micro-batches-lost",
                              "rule: batch-repeated"));
}

TEST(DiagnosisTextTest, ACommandThatRecordsSeveralThingsIsPrintedOnce) {
  DiagnosisReport report;
  report.Unjudged("a", "record");
  report.Unjudged("b", "record");
  report.Unjudged("c", "another");
  ::testing::internal::CaptureStdout();
  PrintDiagnosis(report.Take(), "", 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("Not judged: a\nNot judged: b\n  to record it: "
                        "record\nNot judged: c\n  to record it: another\n"));
}

TEST(DiagnosisTextTest, ALongListIsCut) {
  std::string names = "rules without a violation: rule-number-0", few = names;
  for (int i = 1; i < 30; ++i) absl::StrAppend(&names, ", rule-number-", i);
  for (int i = 1; i < 12; ++i) absl::StrAppend(&few, ", rule-number-", i);
  DiagnosisReport report;
  report.Healthy(names);
  report.Healthy(few);
  report.Unjudged("a sentence with, commas, " + std::string(300, 'x'), "");
  ::testing::internal::CaptureStdout();
  PrintDiagnosis(report.Take(), "", 0);
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(said,
              HasSubstr("rule-number-10, and 19 more (--json lists them)"));
  EXPECT_THAT(said, HasSubstr(few + "\n"));
  EXPECT_THAT(said, HasSubstr("commas, " + std::string(300, 'x') + "\n"));
}

TEST(RunRulesTest, WhatWasNotJudgedIsSaidByWhatItNeeds) {
  RunScan scan;
  scan.head.set_steps(3);
  RunRules rules;
  for (int i = 0; i < 30; ++i)
    rules.without_values[i < 20 ? "training" : "activations"].emplace_back(
        "rule-with-a-name");
  rules.without_steps["12 successive steps"] = {"a", "b"};
  DiagnosisReport unwatched;
  AddUnjudgedRules(scan, rules, &unwatched);
  v1::DiagnoseReport said = unwatched.Take();
  ASSERT_THAT(said.unjudged(), SizeIs(2));
  EXPECT_THAT(said.unjudged(0).what(),
              AllOf(HasSubstr("30 rules on losses"), Not(HasSubstr("name"))));
  EXPECT_EQ(said.unjudged(1).what(),
            "rules that need more steps (there are 3): a, b (12 successive "
            "steps)");
  EXPECT_EQ(said.unjudged(0).record(), said.unjudged(1).record());
  scan.input.steps = {0, 1, 5};
  DiagnosisReport apart;
  AddUnjudgedRules(scan, rules, &apart);
  EXPECT_EQ(apart.Take().unjudged(1).what(),
            "rules that need more or successive steps (there are 3, not all "
            "successive): a, b (12 successive steps)");
  // A run of which task monitor recorded a part.
  scan.input.values.resize(1);
  scan.input.values[0].name = "Training.0.debug.loss";
  DiagnosisReport partly;
  AddUnjudgedRules(scan, rules, &partly);
  said = partly.Take();
  ASSERT_THAT(said.unjudged(), SizeIs(3));
  EXPECT_THAT(said.unjudged(1).what(),
              HasSubstr("rules that need training (monitor.values): rule"));
  RunRules idle;
  idle.without_subject["clipping"] = {"a", "b"};
  idle.without_subject["micro batches"] = {"c"};
  DiagnosisReport report;
  AddUnjudgedRules(scan, idle, &report);
  said = report.Take();
  ASSERT_THAT(said.unjudged(), SizeIs(1));
  EXPECT_EQ(said.unjudged(0).what(),
            "rules with nothing to judge in this program: a, b (clipping); c "
            "(micro batches)");
  EXPECT_EQ(said.unjudged(0).record(), "");
}

TEST_F(DumpDiagnosisTest, StepsOfAnEarlierRunAreLeftOutAndNamed) {
  Sound(0);
  Sound(1);
  for (const int64_t step : {2, 3, 5}) Nan(step);
  dir_.WriteFile(
      "d/manifest.json",
      absl::StrCat(R"({"run":"new","files":[)", FileOf(0), ",", FileOf(1),
                   R"(],"earlier_runs":[{"run":"old","files":[)", FileOf(1),
                   ",", FileOf(2), ",", FileOf(3), ",", FileOf(5),
                   R"(]},{"run":"moved","directory":"earlier/moved","files":[)",
                   FileOf(0), "]}]}"));
  v1::DiagnoseReport report = Diagnose("d");
  EXPECT_THAT(report.findings(), IsEmpty());
  ASSERT_THAT(report.unjudged(), SizeIs(1));
  EXPECT_THAT(report.unjudged(0).what(),
              HasSubstr("steps 2-3,5 of an earlier job (run old)"));
  EXPECT_THAT(report.unjudged(0).judge(), HasSubstr("/d/step2 (each step"));
  EXPECT_EQ(report.unjudged(0).record(), "");
  // The number of a job has no effect if ranks have the steps.
  report = Diagnose("d", 1);
  EXPECT_THAT(report.findings(), IsEmpty());
  EXPECT_THAT(report.unjudged(), SizeIs(1));
  // It is judged if it is named.
  report = Diagnose("d/step2");
  ASSERT_THAT(report.findings(), SizeIs(1));
  EXPECT_EQ(report.findings(0).step(), 2);
}

TEST_F(DumpDiagnosisTest, AJobOfTheSameNameIsToldFromWhatGoesOnForIt) {
  for (const int64_t step : {0, 1, 3}) Sound(step);
  Nan(2);
  const auto manifest = [&](const std::string& newest,
                            const std::string& earlier) {
    dir_.WriteFile("d/manifest.json",
                   absl::StrCat(R"({"run":"x","files":[)", newest,
                                R"(],"earlier_runs":[{"run":"x","files":[)",
                                earlier, "]}]}"));
  };
  // It started again at step 0 and did not reach step 2.
  manifest(absl::StrCat(FileOf(0), ",", FileOf(1)),
           absl::StrCat(FileOf(2), ",", FileOf(3)));
  v1::DiagnoseReport report = Diagnose("d");
  EXPECT_THAT(report.findings(), IsEmpty());
  ASSERT_THAT(report.unjudged(), SizeIs(1));
  EXPECT_THAT(report.unjudged(0).what(),
              HasSubstr("steps 2-3 of an earlier job (run x)"));
  // It continued after the last step of the job before.
  manifest(FileOf(3), absl::StrCat(FileOf(0), ",", FileOf(1), ",", FileOf(2)));
  report = Diagnose("d");
  EXPECT_THAT(report.findings(), SizeIs(1));
  EXPECT_THAT(report.unjudged(), IsEmpty());
}

TEST_F(DumpDiagnosisTest, RanksOfAnEarlierRunAreNoReplicas) {
  Weight(0, 0, "8.1");
  Weight(0, 1, "8.10001");
  EXPECT_THAT(Diagnose("d").findings(), SizeIs(1));
  dir_.WriteFile("d/manifest.json",
                 absl::StrCat(R"({"run":"new","files":[)", FileOf(0),
                              R"(],"earlier_runs":[{"run":"old","files":[)",
                              R"({"path":"step0/rank1/dump.json"}]}]})"));
  EXPECT_THAT(Diagnose("d").findings(), IsEmpty());
}

TEST_F(DumpDiagnosisTest, ReplicasThatPartedAreNoShards) {
  Weight(3, 0, "8.1");
  Weight(3, 1, "9.2");
  v1::DiagnoseReport report = Diagnose("d");
  EXPECT_THAT(report.findings(), IsEmpty());
  ASSERT_THAT(report.unjudged(), SizeIs(1));
  EXPECT_THAT(report.unjudged(0).what(),
              HasSubstr("or replicas that differed"));
  // Values that they held before.
  Weight(2, 0, "8");
  Weight(2, 1, "8");
  report = Diagnose("d");
  ASSERT_THAT(report.findings(), SizeIs(1));
  EXPECT_EQ(report.findings(0).step(), 3);
  EXPECT_THAT(report.unjudged(), IsEmpty());
  // The program declares it, also in a single step.
  const auto say = [&](int64_t rank, const std::string& replicas) {
    dir_.WriteFile(absl::StrCat("d/step3/rank", rank, "/run_card.json"),
                   absl::StrCat(R"({"world":{"replicas":")", replicas, "\"}}"));
  };
  say(0, "0,1");
  say(1, "0,1");
  EXPECT_THAT(Diagnose("d/step3").findings(), SizeIs(1));
  // Each rank has its own values, and the program declares nothing.
  for (const auto& [one, other] :
       {std::pair("0", "1"), std::pair("0,1", "0"), std::pair("x", "x"),
        std::pair("", "99999999999999999999")}) {
    say(0, one);
    say(1, other);
    EXPECT_THAT(Diagnose("d/step3").findings(), IsEmpty()) << one;
  }
}

TEST_F(DumpDiagnosisTest, ReplicasThatDifferHaveTheirLineOfCode) {
  Weight(0, 0, "8.1");
  Weight(0, 1, "8.10001");
  dir_.WriteFile("d/step0/rank0/stack.json", R"x({
      "0": [["Module.m.M.forward.0"], ["File fit.py, line 2, in f, \n m(x)"]]})x");
  const v1::DiagnoseReport report = Diagnose("d");
  ASSERT_THAT(report.findings(), SizeIs(1));
  EXPECT_EQ(report.findings(0).code_line(), "fit.py:2 in f: m(x)");
  EXPECT_EQ(report.findings(0).module(), "m (M)");
}

TEST_F(DumpDiagnosisTest, OneOfTwoJobsWithoutRanksIsJudged) {
  dir_.Write("d/step0/proc4", {Call("Torch.exp.0.forward", "1", "2")});
  dir_.Write("d/step0/proc3", {Call("Torch.log.0.forward", "-1", "NaN")});
  dir_.WriteFile("d/manifest.json",
                 R"({"run":"b","files":[{"path":"step0/proc3/dump.json"}],)"
                 R"("earlier_runs":[{"run":"a","files":)"
                 R"([{"path":"step0/proc4/dump.json"}]}]})");
  v1::DiagnoseReport report = Diagnose("d");
  EXPECT_THAT(report.findings(), SizeIs(1));
  ASSERT_THAT(report.notes(), SizeIs(1));
  EXPECT_THAT(report.notes(0), HasSubstr("Read: job 2, the newest"));
  report = Diagnose("d", 1);
  EXPECT_THAT(report.findings(), IsEmpty());
  EXPECT_THAT(report.healthy(0), HasSubstr("no call of 1 step makes"));
}

TEST_F(DumpDiagnosisTest, AManifestThatCannotBeReadIsSaid) {
  Sound(0);
  dir_.WriteFile("d/manifest.json", "{");
  DiagnosisReport report;
  const absl::Status status =
      DiagnoseDump(files_.get(), {dir_.path() + "/d", "d", {}}, &report)
          .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/d/manifest.json: is not JSON"));
}

TEST_F(DumpDiagnosisTest, RanksThatWereKilledAreNamed) {
  Sound(0, 0);
  Sound(1, 0);
  Sound(0, 1);
  dir_.WriteFile(
      "d/manifest.json",
      R"({"run":"a","files":[],"gaps":[)"
      R"({"step":1,"rank":"rank0","entry":"x","reason":"AGENT_BUDGET"},)"
      R"({"step":1,"rank":"rank1","entry":"","reason":"NOT_HEARD_OF"},)"
      R"({"step":-1,"rank":"rank7","entry":"","reason":"NOT_HEARD_OF"}]})");
  DiagnosisReport report;
  const auto ended =
      DiagnoseDump(files_.get(), {dir_.path() + "/d", "d", {}}, &report);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(*ended, "rank1 (newest step here: 0), rank7 (no step here)");
}

// Steps of a server: `requests` is the content of requests.json for each.
class RequestDiagnosisTest : public DumpDiagnosisTest {
 protected:
  void Requests(int64_t step, const std::string& requests,
                const std::string& recorded = "null") const {
    dir_.WriteFile(absl::StrCat("d/step", step, "/rank0/requests.json"),
                   absl::StrCat(R"([{"from_entry":"x","rows":4,"recorded":)",
                                recorded, R"(,"requests":[)", requests, "]}]"));
  }
  absl::StatusOr<RequestInDump> Find(const std::string& wanted) const {
    const auto layout = FindDumps(files_.get(), dir_.path() + "/d");
    EXPECT_TRUE(layout.ok()) << layout.status();
    return RequestInDump::Find(files_.get(), *layout, "d", wanted);
  }
};

TEST_F(RequestDiagnosisTest, FromARequestToTheCallAndTheToken) {
  for (const int64_t step : {3, 5}) Sound(step);
  for (const int64_t step : {4, 6}) Nan(step);
  const auto row = [](const char* id, int begin, int end, int position) {
    return absl::StrCat(R"({"id":")", id, R"(","begin":)", begin, R"(,"end":)",
                        end, R"(,"position":)", position, "}");
  };
  Requests(3, row("cmpl-slow-1-0-aa", 0, 4, 0));
  // A step with only another request, although it has a NaN.
  Requests(4, row("cmpl-fast-0-bb", 0, 1, 9));
  Requests(5, absl::StrCat(row("cmpl-fast-0-bb", 0, 1, 10), ",",
                           row("cmpl-slow-1-0-aa", 1, 2, 4)));
  Requests(6, row("cmpl-slow-1-0-aa", 0, 1, 5), "\"slow-1\"");
  const auto request = Find("slow-1");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->id(), "cmpl-slow-1-0-aa");
  EXPECT_EQ(request->TokensOf(3), "tokens 0 to 3");
  EXPECT_EQ(request->TokensOf(4), "");
  EXPECT_EQ(request->TokensOf(6), "token 5");
  DiagnosisReport report;
  ASSERT_TRUE(request->Diagnose(files_.get(), &report).ok());
  const v1::DiagnoseReport said = report.Take();
  ASSERT_THAT(said.findings(), SizeIs(1));
  EXPECT_EQ(said.findings(0).step(), 6);
  EXPECT_EQ(said.findings(0).name(), "Torch.log.0.forward");
  ASSERT_THAT(said.notes(), SizeIs(1));
  EXPECT_THAT(said.notes(0), HasSubstr("6 tokens in 3 steps, 3 to 6"));
  // In step 5 the numbers belong to both requests.
  ASSERT_THAT(said.unjudged(), SizeIs(3));
  EXPECT_THAT(said.unjudged(0).what(), HasSubstr("in 1 of these steps"));
}

TEST_F(RequestDiagnosisTest, WhatIsThereIsNamedWhereTheRequestIsNot) {
  Sound(3);
  EXPECT_THAT(std::string(Find("a").status().message()),
              HasSubstr("it is not a recording of a server"));
  Requests(3, R"({"id":"b","begin":0,"end":4,"position":0})");
  EXPECT_THAT(std::string(Find("a").status().message()),
              HasSubstr("no request is a; there are b"));
}

TEST_F(DumpDiagnosisTest, ANamedStepHasItsNumber) {
  Weight(11, 0, "8.1");
  Weight(11, 1, "8.10001");
  const v1::DiagnoseReport report = Diagnose("d/step11");
  ASSERT_THAT(report.findings(), SizeIs(1));
  EXPECT_EQ(report.findings(0).by(), "replicas");
  EXPECT_EQ(report.findings(0).step(), 11);
}

TEST(DiagnosisTextTest, WhatIsWorthALookIsCounted) {
  const auto text = [](const v1::DiagnoseReport& report) {
    ::testing::internal::CaptureStdout();
    PrintDiagnosis(report, /*ended=*/"", /*limit=*/0);
    return ::testing::internal::GetCapturedStdout();
  };
  v1::DiagnoseReport report;
  EXPECT_THAT(text(report),
              HasSubstr("Nothing was found in what was recorded."));
  v1::DiagnoseReport::Finding* const finding = report.add_findings();
  finding->set_name("Training.0.debug.loss");
  finding->set_sure("likely");
  EXPECT_THAT(text(report), HasSubstr("certainly wrong in what was recorded; "
                                      "worth a look: 1.\nWorth a look: "));
  finding->set_sure("exact");
  EXPECT_THAT(text(report), HasSubstr("First: "));
  EXPECT_THAT(text(report), Not(HasSubstr("Nothing")));
}

}  // namespace
}  // namespace rankprobe
