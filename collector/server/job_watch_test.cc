// SPDX-License-Identifier: Apache-2.0
#include "collector/server/job_watch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class JobWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "/job_watch_XXXXXX";
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    for (const char* name : {"supervisor.lock", "users.lock"})
      std::ofstream(Path(name)).put('\n');
    auto opened = JobWatch::Open(directory_, &clock_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    watch_ = *std::move(opened);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const {
    return directory_ + "/" + name;
  }
  int Hold(const char* name, int how) const {
    const int fd = ::open(Path(name).c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::flock(fd, how | LOCK_NB), 0);
    return fd;
  }
  // Checks every second for longer than its patience.
  std::string LookFor(absl::Duration time) {
    for (absl::Duration at; at < time; at += absl::Seconds(1)) {
      if (const std::string why = watch_->Over(); !why.empty()) return why;
      clock_.Advance(absl::Seconds(1));
    }
    return "";
  }

  std::string directory_;
  ManualClock clock_;
  std::unique_ptr<JobWatch> watch_;
};

TEST_F(JobWatchTest, EndsOnlyAfterAWhileWithoutAnybody) {
  EXPECT_EQ(LookFor(absl::Seconds(9)), "");
  EXPECT_NE(LookFor(absl::Seconds(3)), "");
}

TEST_F(JobWatchTest, ASupervisorOrAUserKeepsIt) {
  const int supervisor = Hold("supervisor.lock", LOCK_EX);
  EXPECT_EQ(LookFor(absl::Seconds(60)), "");
  const int users[2] = {Hold("users.lock", LOCK_SH),
                        Hold("users.lock", LOCK_SH)};
  ::close(supervisor);
  ::close(users[0]);
  EXPECT_EQ(LookFor(absl::Seconds(60)), "");
  ::close(users[1]);
  EXPECT_EQ(LookFor(absl::Seconds(9)), "");
  // The patience begins again.
  ::close(Hold("users.lock", LOCK_SH));
  const int next = Hold("users.lock", LOCK_SH);
  EXPECT_EQ(LookFor(absl::Seconds(2)), "");
  ::close(next);
  EXPECT_EQ(LookFor(absl::Seconds(9)), "");
  EXPECT_NE(LookFor(absl::Seconds(3)), "");
}

TEST_F(JobWatchTest, ItsLooksLeaveNoLock) {
  EXPECT_EQ(watch_->Over(), "");
  ::close(Hold("supervisor.lock", LOCK_EX));
  ::close(Hold("users.lock", LOCK_EX));
}

TEST_F(JobWatchTest, ADirectoryThatIsRemovedIsOverAtOnce) {
  const int user = Hold("users.lock", LOCK_SH);
  EXPECT_EQ(watch_->Over(), "");
  std::filesystem::remove(Path("supervisor.lock"));
  EXPECT_NE(watch_->Over(), "");
  ::close(user);
}

TEST_F(JobWatchTest, MakesNothing) {
  const std::string gone = Path("gone");
  EXPECT_TRUE(absl::IsNotFound(JobWatch::Open(gone, &clock_).status()));
  EXPECT_FALSE(std::filesystem::exists(gone));
  std::filesystem::remove(Path("users.lock"));
  EXPECT_TRUE(absl::IsNotFound(JobWatch::Open(directory_, &clock_).status()));
  EXPECT_FALSE(std::filesystem::exists(Path("users.lock")));
}

}  // namespace
}  // namespace rankprobe
