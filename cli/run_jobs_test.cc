// SPDX-License-Identifier: Apache-2.0
// The jobs of a run, and the one that is judged.
#include "cli/client/run_jobs.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Steps of one process, one second apart, beginning at `second`.
struct Process {
  std::optional<int64_t> rank;
  int64_t pid = 0;
  std::string job;
  int64_t second = 0, first_step = 0, last_step = 0;
  std::string host = "h";
};

std::vector<RunJob> Jobs(const std::vector<Process>& processes) {
  std::vector<v1::StepInfo> steps;
  for (const Process& process : processes) {
    for (int64_t step = process.first_step; step <= process.last_step; ++step) {
      v1::StepInfo& info = steps.emplace_back();
      info.set_step(step);
      if (process.rank.has_value()) info.set_rank(*process.rank);
      info.set_pid(process.pid);
      info.set_host(process.host);
      info.set_incarnation(static_cast<uint64_t>(process.pid));
      info.set_job(process.job);
      info.set_updated_unix_ns((process.second + step - process.first_step) *
                               1000000000);
    }
  }
  return JobsOf(steps);
}

JudgedJob Choose(const std::vector<RunJob>& jobs,
                 std::optional<int64_t> wanted = std::nullopt) {
  auto judged = ChooseJob("r", jobs, wanted, "diagnose run:r");
  EXPECT_TRUE(judged.ok()) << judged.status();
  return *std::move(judged);
}

TEST(RunJobsTest, OneJobIsOne) {
  // Ranks that were started individually; on two machines; one after the other.
  EXPECT_THAT(Jobs({{0, 1, "a", 0, 0, 3}, {1, 2, "b", 0, 0, 3}}), SizeIs(1));
  EXPECT_THAT(Jobs({{0, 1, "", 0, 0, 0}, {1, 2, "", 5, 0, 0}}), SizeIs(1));
  // A restart of the same job.
  EXPECT_THAT(Jobs({{0, 1, "a", 0, 0, 3}, {0, 2, "a", 9, 2, 5}}), SizeIs(1));
  // Processes without ranks at the same time.
  EXPECT_THAT(Jobs({{{}, 1, "", 0, 0, 3}, {{}, 2, "", 1, 0, 3}}), SizeIs(1));
  EXPECT_THAT(Jobs({{{}, 1, "a", 0, 0, 3}, {{}, 2, "a", 90, 0, 3}}), SizeIs(1));
  // One that runs together with ranks, and one after them in the same job.
  EXPECT_THAT(Jobs({{0, 1, "a", 0, 0, 3}, {{}, 2, "b", 2, 0, 3}}), SizeIs(1));
  EXPECT_THAT(Jobs({{0, 1, "a", 0, 0, 3}, {{}, 2, "a", 90, 0, 3}}), SizeIs(1));
  EXPECT_THAT(Jobs({{0, 1, "", 0, 0, 3}, {{}, 2, "", 90, 0, 3}}), SizeIs(1));
  EXPECT_THAT(Jobs({}), IsEmpty());
  EXPECT_FALSE(Choose(Jobs({{0, 1, "a", 0, 0, 3}})).only.has_value());
}

TEST(RunJobsTest, TheNewestJobOfANameIsJudged) {
  const std::vector<RunJob> jobs =
      Jobs({{0, 3, "b", 90, 0, 4}, {0, 1, "a", 0, 0, 9}, {1, 2, "a", 0, 0, 9}});
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_THAT(jobs[0].incarnations, ElementsAre(1, 2));
  const JudgedJob judged = Choose(jobs);
  ASSERT_TRUE(judged.only.has_value());
  EXPECT_THAT(judged.only->incarnations, ElementsAre(3));
  EXPECT_THAT(judged.only->places, ElementsAre("rank0"));
  ASSERT_THAT(judged.notes, SizeIs(2));
  EXPECT_THAT(judged.notes[0],
              HasSubstr("has steps of 2 jobs: job 1, process 1 on h and 1 more "
                        "(steps 0-9, until "));
  EXPECT_THAT(judged.notes[1], HasSubstr("Judged: job 2, the newest"));
  ASSERT_THAT(judged.unjudged, SizeIs(1));
  EXPECT_EQ(judged.unjudged[0].first, "steps 0-9 of job 1");
  EXPECT_EQ(judged.unjudged[0].second, "rankprobe diagnose run:r --job 1");
  EXPECT_THAT(Choose(jobs, 1).only->incarnations, ElementsAre(1, 2));
  for (const int64_t none : {0, 3})
    EXPECT_TRUE(
        absl::IsInvalidArgument(ChooseJob("r", jobs, none, "scan").status()));
}

TEST(RunJobsTest, ProcessesWithoutRanksAreToldApart) {
  // Distinguished by their launcher, even at the same time; without that, by
  // their times.
  EXPECT_THAT(Jobs({{{}, 1, "a", 0, 0, 9}, {{}, 2, "b", 3, 0, 4}}), SizeIs(2));
  EXPECT_THAT(Jobs({{{}, 1, "", 0, 0, 3}, {{}, 2, "", 90, 0, 3}}), SizeIs(2));
  // A process after ranks whose job had ended.
  EXPECT_THAT(Jobs({{1, 1, "a", 0, 4, 5}, {{}, 2, "b", 90, 5, 9}}), SizeIs(2));
  // On another machine, which starts its part of a job by itself.
  EXPECT_THAT(Jobs({{{}, 1, "a", 0, 0, 9}, {{}, 2, "b", 3, 0, 4, "other"}}),
              SizeIs(1));
}

TEST(RunJobsTest, AJobThatGoesOnIsJudgedWithTheOneBefore) {
  const JudgedJob judged =
      Choose(Jobs({{0, 1, "a", 0, 0, 9}, {0, 2, "b", 90, 10, 14}}));
  EXPECT_FALSE(judged.only.has_value());
  ASSERT_THAT(judged.notes, SizeIs(2));
  EXPECT_THAT(judged.notes[1], HasSubstr("Judged together"));
  EXPECT_THAT(judged.unjudged, IsEmpty());
  // A program without ranks does not continue one with ranks.
  EXPECT_TRUE(Choose(Jobs({{1, 1, "a", 0, 4, 5}, {{}, 2, "b", 90, 6, 13}}))
                  .only.has_value());
  // It starts from a step that the one before has, too.
  EXPECT_TRUE(Choose(Jobs({{0, 1, "a", 0, 0, 9}, {0, 2, "b", 90, 9, 14}}))
                  .only.has_value());
}

}  // namespace
}  // namespace rankprobe
