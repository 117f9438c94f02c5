// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/job_runner.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/testing/scratch_directory.h"
#include "web/jobs/job_output.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The program is a script that the test writes; its arguments are $@.
class JobRunnerTest : public ::testing::Test {
 protected:
  void Start(const std::string& script) {
    const std::string program = scratch_.path() + "/program";
    std::ofstream(program) << "#!/bin/sh\n" << script;
    ::chmod(program.c_str(), 0700);
    options_.program = program;
    options_.directory = jobs_.path();
    runner_ =
        std::make_unique<JobRunner>(options_, file_system_.get(), &clock_);
  }
  static v1::JobSpec Scan(const std::string& run) {
    v1::JobSpec spec;
    spec.set_command("scan");
    (*spec.mutable_options())["run"] = run;
    return spec;
  }
  static v1::JobSpec Check() {
    v1::JobSpec spec;
    spec.set_command("overflow_check");
    (*spec.mutable_options())["input_path"] = "run:a";
    return spec;
  }
  std::string Begin(const v1::JobSpec& spec) {
    const auto info = runner_->Start(spec);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->id() : "";
  }
  v1::JobInfo Until(const std::string& id, v1::JobState state) {
    for (;;) {
      const auto info = runner_->Get(id);
      EXPECT_TRUE(info.ok());
      if (!info.ok() || info->state() == state) return *info;
      if (info->ended_unix_ns() != 0) {
        ADD_FAILURE() << info->DebugString();
        return *info;
      }
      std::this_thread::yield();
    }
  }
  v1::JobInfo UntilStage(const std::string& id) {
    for (;;) {
      const auto info = runner_->Get(id);
      if (!info.ok() || !info->stage().empty() || info->ended_unix_ns() != 0)
        return *info;
      std::this_thread::yield();
    }
  }
  size_t Directories() const {
    const std::filesystem::directory_iterator at(jobs_.path());
    return std::distance(begin(at), end(at));
  }

  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  ManualClock clock_;
  testing::ScratchDirectory scratch_;
  testing::ScratchDirectory jobs_;
  JobRunnerOptions options_;
  std::unique_ptr<JobRunner> runner_;
};

TEST_F(JobRunnerTest, AnswerMessagesProgressAndFiles) {
  options_.globals = {"--collector=h:1"};
  Start(
      "echo \"{\\\"asked\\\":\\\"$1 $2\\\"}\"\n"
      "echo 'step 3 rank 0 40%  1.5 MiB' >&2\necho 'a warning' >&2\n"
      "out=${4#--output_path=}\nmkdir -p \"$out/sub\"\n"
      "echo x > \"$out/a.csv\"\necho xyz > \"$out/sub/b\"\n"
      "ln -s /etc/passwd \"$out/link\"\nexit 1\n");
  const v1::JobInfo info = Until(Begin(Check()), v1::JOB_STATE_DONE);
  EXPECT_EQ(info.report_json(),
            "{\"asked\":\"--collector=h:1 overflow_check\"}\n");
  EXPECT_EQ(runner_->List().jobs(0).report_json(), "") << "a list is short";
  EXPECT_EQ(info.messages(), "a warning\n");
  EXPECT_EQ(info.stage(), "step 3 rank 0");
  EXPECT_EQ(info.percent(), 40);
  EXPECT_EQ(info.exit_code(), 1);
  ASSERT_EQ(info.files_size(), 2) << "no link is followed";
  EXPECT_EQ(info.files(0).name(), "a.csv");
  EXPECT_EQ(info.files(1).name(), "sub/b");
  EXPECT_EQ(info.files(1).length_bytes(), 4u);
  EXPECT_TRUE(runner_->FindFile(info.id(), "sub/b").ok());
  for (const char* const name : {"link", "../in/x", "/etc/passwd", ""})
    EXPECT_FALSE(runner_->FindFile(info.id(), name).ok()) << name;
}

TEST_F(JobRunnerTest, AFailureSaysWhy) {
  Start("echo 'rankprobe: no run x' >&2\nexit 4\n");
  const v1::JobInfo info = Until(Begin(Scan("x")), v1::JOB_STATE_FAILED);
  EXPECT_EQ(info.exit_code(), 4);
  EXPECT_EQ(info.messages(), "rankprobe: no run x\n");
}

TEST_F(JobRunnerTest, PlacesOfTheJobAreNotShown) {
  Start(
      "echo \"$TMPDIR/rankprobe_abc/dump/step1/rank0/dump.json: bad\" >&2\n"
      "echo \"{\\\"file\\\":\\\"${3#--output_path=}/x.csv\\\"}\"\n");
  const v1::JobInfo info = Until(Begin(Check()), v1::JOB_STATE_DONE);
  EXPECT_EQ(info.messages(), "step1/rank0/dump.json: bad\n");
  EXPECT_EQ(info.report_json(), "{\"file\":\"x.csv\"}\n");
}

TEST_F(JobRunnerTest, ASignalIsSaid) {
  Start("kill -SEGV $$\n");
  const v1::JobInfo info = Until(Begin(Scan("x")), v1::JOB_STATE_FAILED);
  EXPECT_THAT(info.messages(), HasSubstr("signal 11"));
}

TEST_F(JobRunnerTest, AProgramThatIsNotThere) {
  Start("");
  std::filesystem::remove(options_.program);
  const v1::JobInfo info = Until(Begin(Scan("x")), v1::JOB_STATE_FAILED);
  EXPECT_THAT(info.messages(), HasSubstr("cannot start"));
}

TEST_F(JobRunnerTest, CancelEndsItAndWhatItStarted) {
  Start("echo $$ 'at 1%' >&2\nsleep 1000 &\nwait\n");
  const std::string id = Begin(Scan("x"));
  UntilStage(id);
  EXPECT_TRUE(runner_->Cancel(id).ok());
  Until(id, v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(runner_->Cancel(id).ok()) << "once more changes nothing";
  EXPECT_FALSE(runner_->Cancel("nonsense").ok());
}

TEST_F(JobRunnerTest, SomeAtATimeAndABoundedRow) {
  options_.most_running = 1;
  options_.most_waiting = 2;
  Start("echo 'at 1%' >&2\nsleep 1000\n");
  const std::string first = Begin(Scan("1"));
  UntilStage(first);
  const std::string second = Begin(Scan("2"));
  Begin(Scan("3"));
  EXPECT_EQ(runner_->Start(Scan("4")).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(runner_->Get(second)->state(), v1::JOB_STATE_WAITING);
  EXPECT_TRUE(runner_->Cancel(second).ok());
  EXPECT_EQ(runner_->Get(second)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(runner_->Start(Scan("4")).ok());
  runner_.reset();
  EXPECT_EQ(Directories(), 0u);
}

TEST_F(JobRunnerTest, TheOldestGoes) {
  options_.most_kept = 2;
  options_.most_running = 1;
  Start("echo '{}'\n");
  std::string first;
  for (int i = 0; i < 4; ++i) {
    const std::string id = Begin(Scan(absl::StrCat(i)));
    if (i == 0) first = id;
    while (runner_->Get(id).ok() &&
           runner_->Get(id)->state() != v1::JOB_STATE_DONE) {
      std::this_thread::yield();
    }
  }
  while (runner_->List().jobs_size() > 2) std::this_thread::yield();
  EXPECT_FALSE(runner_->Get(first).ok());
  while (Directories() > 2) std::this_thread::yield();
  EXPECT_EQ(Directories(), 2u);
}

TEST_F(JobRunnerTest, AFreshAnswerIsTakenAgain) {
  Start("echo '{}'\n");
  v1::JobSpec spec = Scan("x");
  const std::string id = Begin(spec);
  Until(id, v1::JOB_STATE_DONE);
  EXPECT_NE(Begin(spec), id);
  spec.set_reuse(true);
  EXPECT_EQ(Begin(spec), id);
  v1::JobSpec other = Scan("y");
  other.set_reuse(true);
  EXPECT_NE(Begin(other), id);
  clock_.Advance(absl::Seconds(31));
  EXPECT_NE(Begin(spec), id);
}

TEST_F(JobRunnerTest, WhatFillsTheDiskIsEnded) {
  options_.max_job_bytes = 1 << 20;
  Start(
      "out=${3#--output_path=}\n"
      "while :; do head -c 300000 /dev/zero >> \"$out/x\"; sleep 0.02; done\n");
  const v1::JobInfo info = Until(Begin(Check()), v1::JOB_STATE_FAILED);
  EXPECT_THAT(info.messages(), HasSubstr("room on disk"));
}

// The client of one request.
class Client final : public HttpReply {
 public:
  void Send(int, absl::string_view, std::string) override {}
  void Begin(int, absl::string_view) override {}
  bool Write(absl::string_view) override { return true; }
  void OnGone(std::function<void()> callback) override {
    const absl::MutexLock lock(&mutex_);
    callback_ = std::move(callback);
  }
  void UntilItWaits() {
    const auto waits = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return callback_ != nullptr;
    };
    const absl::MutexLock lock(&mutex_, absl::Condition(&waits));
  }
  void Go() {
    UntilItWaits();
    const absl::MutexLock lock(&mutex_);
    callback_();
  }

 private:
  absl::Mutex mutex_;
  std::function<void()> callback_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(JobRunnerTest, WhoWaitsGetsTheAnswer) {
  Start("echo '{}'\n");
  Client client;
  const auto info = runner_->Do(Check(), &client);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(info->report_json(), "{}\n");
}

TEST_F(JobRunnerTest, WhenTheLastOneWhoWaitsGoesItIsCancelled) {
  Start("echo 'begun 1%' >&2\nexec sleep 600\n");
  v1::JobSpec spec = Check();
  spec.set_reuse(true);
  Client first;
  Client second;
  absl::StatusOr<v1::JobInfo> said[2];
  std::thread one([&] { said[0] = runner_->Do(spec, &first); });
  std::thread two([&] { said[1] = runner_->Do(spec, &second); });
  // Both clients wait for the same job.
  while (runner_->List().jobs_size() == 0) std::this_thread::yield();
  const std::string id = runner_->List().jobs(0).id();
  UntilStage(id);
  first.UntilItWaits();
  second.UntilItWaits();
  first.Go();
  EXPECT_EQ(runner_->Get(id)->state(), v1::JOB_STATE_RUNNING);
  second.Go();
  one.join();
  two.join();
  for (const auto& info : said) {
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->state(), v1::JOB_STATE_CANCELLED);
  }
  EXPECT_EQ(runner_->List().jobs_size(), 1);
}

TEST_F(JobRunnerTest, OneThatSomebodyHasBegunIsNotEndedByWhoWaits) {
  Start("echo 'begun 1%' >&2\nexec sleep 600\n");
  v1::JobSpec spec = Check();
  spec.set_reuse(true);
  const std::string id = Begin(spec);
  Client client;
  std::thread waits([&] { (void)runner_->Do(spec, &client); });
  client.Go();
  UntilStage(id);
  EXPECT_EQ(runner_->Get(id)->state(), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(runner_->Cancel(id).ok());
  waits.join();
}

TEST_F(JobRunnerTest, RunsAreFetchedBeforeIt) {
  options_.sources.runs = JobSources::Runs::kFetched;
  std::string name;
  uint64_t room = 0;
  options_.fetch = [&](const JobDump& dump, uint64_t max_bytes,
                       const std::function<bool()>&) {
    name = dump.name;
    room = max_bytes;
    std::filesystem::create_directories(dump.path + "/step3");
    return dump.path + "/step3";
  };
  Start(
      "test -d \"${2#--input_path=}\" || exit 9\n"
      "echo \"${2#--input_path=}/x: bad\" >&2\n");
  const v1::JobInfo info = Until(Begin(Check()), v1::JOB_STATE_DONE);
  EXPECT_EQ(name, "run:a");
  EXPECT_EQ(room, options_.max_job_bytes);
  EXPECT_EQ(info.messages(), "step3/x: bad\n") << "no place is shown";
}

TEST_F(JobRunnerTest, ARunThatCannotBeFetchedSaysWhyAndWhoCancelsIsHeard) {
  options_.sources.runs = JobSources::Runs::kFetched;
  options_.fetch = [](const JobDump& dump, uint64_t,
                      const std::function<bool()>& cancelled)
      -> absl::StatusOr<std::string> {
    if (dump.name == "run:b") return absl::NotFoundError("no run b");
    while (!cancelled()) std::this_thread::yield();
    return absl::CancelledError("cancelled");
  };
  Start("echo never\n");
  v1::JobSpec other = Check();
  (*other.mutable_options())["input_path"] = "run:b";
  const v1::JobInfo info = Until(Begin(other), v1::JOB_STATE_FAILED);
  EXPECT_EQ(info.messages(), "no run b");
  const std::string id = Begin(Check());
  UntilStage(id);
  ASSERT_TRUE(runner_->Cancel(id).ok());
  EXPECT_EQ(Until(id, v1::JOB_STATE_CANCELLED).report_json(), "");
}

TEST_F(JobRunnerTest, ApartItGetsNoSecretAndGoesFirst) {
  ::setenv("SOME_SECRET", "s3cr3t", 1);
  const std::string here = scratch_.path() + "/open";
  std::ofstream(here) << "x";
  const int fd = ::open(here.c_str(), O_RDONLY);  // not close-on-exec
  options_.apart = true;
  // The parent sets the score, a moment after the child has started.
  Start(
      "while [ \"$(cat /proc/$$/oom_score_adj)\" = 0 ]; do sleep 0.01; done\n"
      "env >&2\ncat /proc/$$/oom_score_adj >&2\nls -l /proc/self/fd >&2\n");
  const v1::JobInfo info = Until(Begin(Check()), v1::JOB_STATE_DONE);
  ::close(fd);
  ::unsetenv("SOME_SECRET");
  EXPECT_THAT(info.messages(), HasSubstr("TMPDIR="));
  EXPECT_THAT(info.messages(), HasSubstr("PATH="));
  EXPECT_THAT(info.messages(), HasSubstr("RANKPROBE_READ_BELOW="));
  EXPECT_THAT(info.messages(), Not(HasSubstr("s3cr3t")));
  EXPECT_THAT(info.messages(), HasSubstr("\n1000\n"));
  EXPECT_THAT(info.messages(), Not(HasSubstr(here)));
}

TEST_F(JobRunnerTest, WhatNeedsTooMuchMemoryOrTimeIsEnded) {
  options_.max_memory_bytes = 1;
  Start("exec sleep 600\n");
  EXPECT_THAT(Until(Begin(Check()), v1::JOB_STATE_FAILED).messages(),
              HasSubstr("more memory"));
  options_.max_memory_bytes = 0;
  options_.max_time = absl::Milliseconds(1);
  Start("exec sleep 600\n");
  EXPECT_THAT(Until(Begin(Check()), v1::JOB_STATE_FAILED).messages(),
              HasSubstr("took longer than 1ms"));
}

TEST_F(JobRunnerTest, WhatIsKeptHasARoomOfItsOwn) {
  options_.max_kept_bytes = 100;
  options_.most_running = 1;
  Start("head -c 60 /dev/zero > \"${3#--output_path=}/x\"\n");
  const std::string first = Begin(Check());
  Until(first, v1::JOB_STATE_DONE);
  Until(Begin(Check()), v1::JOB_STATE_DONE);
  while (runner_->Get(first).ok()) std::this_thread::yield();
  EXPECT_EQ(runner_->List().jobs_size(), 1);
}

TEST_F(JobRunnerTest, DeletedItIsGone) {
  Start("echo '{}'\n");
  const std::string id = Begin(Scan("x"));
  Until(id, v1::JOB_STATE_DONE);
  EXPECT_TRUE(runner_->Delete(id).ok());
  EXPECT_FALSE(runner_->Get(id).ok());
  while (Directories() > 0) std::this_thread::yield();
}

TEST_F(JobRunnerTest, WithoutAProgramThereAreNone) {
  runner_ = std::make_unique<JobRunner>(JobRunnerOptions(), file_system_.get(),
                                        &clock_);
  EXPECT_EQ(runner_->Start(Scan("x")).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(JobOutputTest, ProgressAmongMessages) {
  JobOutput output;
  output.AddError("a\x1b[31m 50");
  output.AddError("%\nb 120%\nc d 7%\n%\nlast");
  output.Finish();
  EXPECT_EQ(output.messages(), "b 120%\n%\nlast\n");
  EXPECT_EQ(output.stage(), "c d");
  EXPECT_EQ(output.percent(), 7);
  for (int i = 0; i < 10'000; ++i) output.AddError(absl::StrCat("m", i, "\n"));
  EXPECT_LE(output.messages().size(), JobOutput::kMaxMessageBytes);
  EXPECT_THAT(output.messages(), HasSubstr("m9999\n"));
  EXPECT_THAT(output.messages(), Not(HasSubstr("m1\n")));
  output.AddAnswer(std::string(JobOutput::kMaxAnswerBytes, 'x'));
  EXPECT_FALSE(output.cut());
  output.AddAnswer("y");
  EXPECT_TRUE(output.cut());
  EXPECT_EQ(output.answer().size(), JobOutput::kMaxAnswerBytes);
}

}  // namespace
}  // namespace rankprobe
