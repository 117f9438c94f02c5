// SPDX-License-Identifier: Apache-2.0
#include "analysis/run_card/run_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RunCardTest : public ::testing::Test {
 protected:
  void Write(const std::string& run, int step, int rank,
             const std::string& card) {
    const std::string place = absl::StrCat(run, "/step", step, "/rank", rank);
    dir_.Write(place + "/dump.json", R"({"task":"statistics","data":{}})");
    if (!card.empty()) dir_.Write(place + "/run_card.json", card);
  }
  absl::StatusOr<v1::RunCardReport> Compare() {
    return CompareRunCards(file_system_.get(), Layout("a"), Layout("b"));
  }
  DumpLayout Layout(const std::string& run) {
    auto layout = FindDumps(file_system_.get(), dir_.path() + "/" + run);
    EXPECT_TRUE(layout.ok()) << layout.status();
    return *std::move(layout);
  }
  std::vector<std::string> Explanations(Unlike what) {
    return CardExplanations(file_system_.get(), Layout("a"), Layout("b"), what,
                            3);
  }
  static std::vector<std::string> Texts(const v1::RunCardReport& report) {
    std::vector<std::string> out;
    for (const auto& d : report.differences()) out.push_back(DifferenceText(d));
    return out;
  }

  rankprobe::testing::TempDir dir_;
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
};

TEST_F(RunCardTest, EqualRunsDifferInNothing) {
  const std::string card =
      R"({"versions":{"torch":"2.13.0"},"batch":{"forward 0":"aa"}})";
  for (const char* run : {"a", "b"}) {
    Write(run, 0, 0, card);
    Write(run, 0, 1, card);
  }
  const auto report = Compare();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->differences(), IsEmpty());
  EXPECT_THAT(report->unseen(), IsEmpty());
  EXPECT_EQ(report->facts_compared(), 4);
  EXPECT_EQ(report->ranks_compared(), 2);
  EXPECT_EQ(report->steps_compared(), 1);
  EXPECT_THAT(Explanations(Unlike::kAnything), IsEmpty());
}

TEST_F(RunCardTest, WhatUsuallyMattersComesFirstAndEqualRanksAreOneLine) {
  for (int rank = 0; rank < 4; ++rank) {
    Write("a", 0, rank,
          R"({"host":{"hostname":"x"},"optimizer":{"lr":"0.1"},)"
          R"("weights":{"w":"11"},"packages":{"numpy":"1.0"}})");
    Write("b", 0, rank,
          absl::StrCat(R"({"host":{"hostname":"y"},"optimizer":{"lr":"0.2"},)",
                       R"("weights":{"w":")", rank == 2 ? "22" : "11",
                       R"("},"packages":{}})"));
  }
  const auto report = Compare();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report),
              ElementsAre("weights w, rank 2: 11 | 22",
                          "optimizer lr, ranks 0-3: 0.1 | 0.2",
                          "packages numpy, ranks 0-3: 1.0 | (absent)",
                          "host hostname, ranks 0-3: x | y"));
  EXPECT_THAT(Explanations(Unlike::kAnything),
              ElementsAre("weights w, rank 2: 11 | 22",
                          "optimizer lr, ranks 0-3: 0.1 | 0.2"));
  // The inputs of a call match, so weights do not explain its difference.
  EXPECT_THAT(Explanations(Unlike::kOwn),
              ElementsAre("optimizer lr, ranks 0-3: 0.1 | 0.2",
                          "packages numpy, ranks 0-3: 1.0 | (absent)"));
}

// A difference of hosts or packages is not listed first.
TEST_F(RunCardTest, WhatChangesNoNumbersIsNoHead) {
  Write("a", 0, 0, R"({"host":{"hostname":"x"}})");
  Write("b", 0, 0, R"({"host":{"hostname":"y"}})");
  EXPECT_THAT(Explanations(Unlike::kAnything), IsEmpty());
}

TEST_F(RunCardTest, AGeneratorThatNothingDrawsFromExplainsNothing) {
  for (int step = 0; step < 2; ++step) {
    Write("a", step, 0,
          absl::StrCat(R"({"random state":{"numpy":"1","torch cpu":"2)", step,
                       R"("}})"));
    Write("b", step, 0,
          absl::StrCat(R"({"random state":{"numpy":"9","torch cpu":"3)", step,
                       R"("}})"));
  }
  EXPECT_THAT(Explanations(Unlike::kAnything),
              ElementsAre("random state torch cpu, step 0, rank 0: 20 | 30"));
  EXPECT_THAT(Explanations(Unlike::kArgument), IsEmpty());
}

// One step suffices for a generator that was seeded, or never was.
TEST_F(RunCardTest, AGeneratorThatNobodyHasDrawnFromExplainsNothing) {
  Write("a", 0, 0,
        R"({"random state":{"numpy":"1, never drawn from","python":"3"},)"
        R"("batch":{"forward":"aa"}})");
  Write("b", 0, 0,
        R"({"random state":{"numpy":"2, never drawn from","python":"4"},)"
        R"("batch":{"forward":"bb"}})");
  EXPECT_THAT(Explanations(Unlike::kInput),
              ElementsAre("batch forward, step 0, rank 0: aa | bb",
                          "random state python, step 0, rank 0: 3 | 4"));
  EXPECT_THAT(Texts(*Compare()), Not(Contains(HasSubstr("numpy"))));
  // If a call's inputs could not be compared, a mask in the batch may explain
  // it.
  EXPECT_THAT(Explanations(Unlike::kUnclear),
              ElementsAre("batch forward, step 0, rank 0: aa | bb",
                          "random state python, step 0, rank 0: 3 | 4"));
}

// In another layout each rank has other weights.
TEST_F(RunCardTest, AStepAloneHasItsNumber) {
  Write("a", 6, 0, R"({"batch":{"forward 0":"aa"}})");
  Write("b", 7, 0, R"({"batch":{"forward 0":"bb"}})");
  const auto report =
      CompareRunCards(file_system_.get(), Layout("a/step6"), Layout("b/step7"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report), ElementsAre(HasSubstr("step 6, rank 0")));
}

TEST_F(RunCardTest, RunsOfOtherRanksHaveNoHead) {
  Write("a", 0, 0, R"({"weights":{"w":"1"}})");
  Write("b", 0, 0, R"({"weights":{"w":"2"}})");
  Write("b", 0, 1, R"({"weights":{"w":"3"}})");
  EXPECT_THAT(Explanations(Unlike::kAnything), IsEmpty());
}

TEST_F(RunCardTest, OfWhatEveryStepSaysTheFirstDifferenceCounts) {
  for (int step = 0; step < 5; ++step) {
    Write("a", step, 0, R"({"batch":{"forward 0":"aa"}})");
    Write("b", step, 0,
          step < 3 ? R"({"batch":{"forward 0":"aa"}})"
                   : R"({"batch":{"forward 0":"bb"}})");
  }
  const auto report = Compare();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report),
              ElementsAre("batch forward 0, step 3, rank 0: aa | bb"));
}

// The run was recorded from another step on: what it is is said there.
TEST_F(RunCardTest, OtherStepsHaveTheSameProcess) {
  Write("a", 0, 0, R"({"model":{"class":"A"},"batch":{"forward 0":"aa"}})");
  Write("b", 7, 0, R"({"model":{"class":"B"},"batch":{"forward 0":"bb"}})");
  const auto report = Compare();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report), ElementsAre("model class, rank 0: A | B"));
  EXPECT_THAT(report->unseen(), ElementsAre("no step is on both sides"));
}

TEST_F(RunCardTest, RanksAndCardsOfOneSideAreSaid) {
  Write("a", 0, 0, R"({"model":{"class":"A"},"batch":{"f":"1"}})");
  Write("a", 0, 1, R"({"model":{"class":"A"}})");
  Write("b", 0, 0, R"({"batch":{"f":"1"}})");
  const auto report = Compare();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->differences(), IsEmpty());
  EXPECT_THAT(report->unseen(),
              ElementsAre("rank 0 of the reference says what it is in a step "
                          "that this dump does not hold",
                          "only the target has rank 1"));
}

TEST_F(RunCardTest, NoCardAtAllIsAnError) {
  Write("a", 0, 0, R"({"model":{"class":"A"}})");
  Write("b", 0, 0, "");
  const auto report = Compare();
  EXPECT_EQ(report.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("/b: no rank has a run_card.json"));
}

TEST_F(RunCardTest, WhatAFileHoldsIsNotTrusted) {
  for (const char* bad : {"[1]", "{", "", "null", R"({"model":)",
                          R"({"model":7,"a":{"b":[]}})"}) {
    Write("a", 0, 0, R"({"model":{"class":"A"}})");
    dir_.Write("b/step0/rank0/dump.json", R"({"task":"statistics","data":{}})");
    dir_.Write("b/step0/rank0/run_card.json", bad);
    const auto report = Compare();
    ASSERT_TRUE(report.ok()) << bad << report.status();
    EXPECT_THAT(report->differences(), IsEmpty()) << bad;
    EXPECT_GT(report->unseen_size(), 0) << bad;
  }
  Write("b", 0, 0, R"({"model":{"class":"\u001b[31mB"}})");
  const auto report = Compare();
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->differences_size(), 1);
  EXPECT_EQ(Texts(*report)[0].find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace rankprobe::analysis
