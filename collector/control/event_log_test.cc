// SPDX-License-Identifier: Apache-2.0
#include "collector/control/event_log.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "collector/testing/frames.h"
#include "common/base/monotonic_event.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Event Make(const std::string& run, const std::string& detail) {
  v1::Event event;
  event.set_run(run);
  event.set_detail(detail);
  return event;
}

class EventLogTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    options_.path = root_ + "/events.log";
    disk_ = file_system_.get();
  }
  // From here on the log is on a disk that can fail.
  void UseMachine() {
    ASSERT_TRUE(machine_.CreateDirectories("/d").ok());
    options_.path = "/d/events.log";
    disk_ = &machine_;
  }
  void FailAll() {
    machine_.FailWhile([](const std::string&, const std::string&) {
      return testing::FaultKind::kIoError;
    });
  }
  std::unique_ptr<EventLog> Open() {
    auto log = EventLog::Open(options_, disk_, &manual_);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static std::vector<std::string> Details(const EventLog& log,
                                          const std::string& run,
                                          uint64_t after = 0,
                                          size_t limit = 100) {
    std::vector<std::string> details;
    for (const v1::Event& event : log.List(run, after, limit))
      details.push_back(event.detail());
    return details;
  }

  ManualClock manual_;
  EventLog::Options options_;
  testing::FaultFileSystem machine_;
  FileSystem* disk_ = nullptr;
};

TEST_F(EventLogTest, KeepsEventsOverRestartsAndNumbersOn) {
  {
    const auto log = Open();
    EXPECT_EQ(log->Append(Make("a", "one")), 1u);
    EXPECT_EQ(log->Append(Make("b", "two")), 2u);
  }
  const auto log = Open();
  EXPECT_EQ(log->Append(Make("a", "three")), 3u);
  EXPECT_THAT(Details(*log, ""), ElementsAre("one", "two", "three"));
  EXPECT_THAT(Details(*log, "a"), ElementsAre("one", "three"));
  EXPECT_THAT(Details(*log, "", 1), ElementsAre("two", "three"));
  EXPECT_THAT(Details(*log, "", 0, 1), ElementsAre("three"));
  EXPECT_TRUE(log->status().ok());
}

TEST_F(EventLogTest, ATornEndIsDroppedAndWrittenOver) {
  {
    const auto log = Open();
    log->Append(Make("a", "one"));
    log->Append(Make("a", "two"));
  }
  // Size of the mark of a clean end.
  constexpr uint64_t kMark = 8;
  for (uint64_t cut = 1; cut < 20; cut += 3) {
    const uint64_t size = *file_system_->FileSize(options_.path);
    ASSERT_TRUE(file_system_->Truncate(options_.path, size - kMark - cut).ok());
    {
      const auto log = Open();
      EXPECT_THAT(Details(*log, ""), ElementsAre("one"));
      log->Append(Make("a", "two"));
    }
    EXPECT_THAT(Details(*Open(), ""), ElementsAre("one", "two"));
  }
}

// A watcher asks for events after the last id it has seen.
TEST_F(EventLogTest, IdsThatWereHandedOutAndLostAreNotUsedAgain) {
  UseMachine();
  const auto killed = Open();
  uint64_t seen = 0;
  for (int i = 0; i < 50; ++i) seen = killed->Append(Make("a", "lost"));
  FailAll();
  for (int i = 0; i < 50; ++i) seen = killed->Append(Make("a", "in memory"));
  machine_.FailWhile(nullptr);
  const auto log = Open();
  const uint64_t id = log->Append(Make("a", "next"));
  EXPECT_GT(id, seen);
  EXPECT_THAT(Details(*log, "a", seen), ElementsAre("next"));
}

// The mark is that of the previous process.
TEST_F(EventLogTest, WhoIsKilledAfterACleanEndHandedOutIdsToo) {
  UseMachine();
  Open()->Append(Make("a", "one"));
  const auto killed = Open();
  FailAll();
  const uint64_t seen = killed->Append(Make("a", "in memory"));
  machine_.FailWhile(nullptr);
  const auto log = Open();
  EXPECT_GT(log->Append(Make("a", "next")), seen);
  EXPECT_THAT(Details(*log, "a", seen), ElementsAre("next"));
}

TEST_F(EventLogTest, ADiskThatIsBehindCostsEventsOfTheFileAndSaysSo) {
  UseMachine();
  options_.own_thread = true;
  options_.max_unwritten = 5;
  {
    auto log = Open();
    const auto answer = std::make_shared<absl::Notification>();
    const auto asked = std::make_shared<MonotonicEvent>();
    machine_.SetDelay([answer, asked](const std::string& op) {
      if (op != "Append") return;
      asked->Set();
      answer->WaitForNotification();
    });
    log->Append(Make("a", "first"));
    EXPECT_TRUE(asked->WaitFor(absl::Seconds(60)));
    for (int i = 0; i < 12; ++i) log->Append(Make("a", absl::StrCat(i)));
    EXPECT_EQ(Details(*log, "a").size(), 13u);
    machine_.SetDelay(nullptr);
    answer->Notify();
    log->WaitForWrites();
    EXPECT_TRUE(log->status().ok());
    log->Append(Make("a", "later"));
  }
  const auto log = Open();
  EXPECT_THAT(Details(*log, "a"),
              ElementsAre("first", "0", "1", "2", "3", "4", "later"));
  EXPECT_THAT(Details(*log, ""),
              Contains(HasSubstr("7 events before this one waited too long")));
}

TEST_F(EventLogTest, TurnsTheFileOverAndForgetsInMemory) {
  options_.max_file_bytes = 400;
  options_.max_in_memory = 5;
  {
    const auto log = Open();
    for (int i = 0; i < 50; ++i) log->Append(Make("a", absl::StrCat(i)));
    EXPECT_THAT(Details(*log, ""), ElementsAre("45", "46", "47", "48", "49"));
  }
  EXPECT_LT(*file_system_->FileSize(options_.path), 500u);
  const auto log = Open();
  EXPECT_THAT(Details(*log, ""), ElementsAre("45", "46", "47", "48", "49"));
  EXPECT_EQ(log->Append(Make("a", "x")), 51u);
}

// C03: a run with many events only loses its own, also over restarts.
TEST_F(EventLogTest, AFloodPushesOutOnlyItself) {
  options_.max_in_memory = 50;
  options_.max_file_bytes = 4000;
  options_.burst = 1e9;
  {
    const auto log = Open();
    v1::Event fired = Make("quiet", "the one that matters");
    fired.set_kind(v1::Event::KIND_TRIGGER_FIRED);
    log->Append(fired);
    fired.set_run("loud");
    log->Append(fired);
    for (int i = 0; i < 5000; ++i) {
      v1::Event error = Make("loud", absl::StrCat("error ", i));
      error.set_kind(v1::Event::KIND_ERROR);
      log->Append(error);
    }
    EXPECT_THAT(Details(*log, "quiet"), ElementsAre("the one that matters"));
    EXPECT_EQ(Details(*log, "loud").front(), "the one that matters");
    EXPECT_EQ(Details(*log, "loud").back(), "error 4999");
    EXPECT_LE(Details(*log, "").size(), 50u);
    EXPECT_TRUE(log->status().ok());
  }
  EXPECT_LT(*file_system_->FileSize(options_.path), 4200u);
  const auto log = Open();
  EXPECT_THAT(Details(*log, "quiet"), ElementsAre("the one that matters"));
  EXPECT_EQ(Details(*log, "loud").front(), "the one that matters");
  EXPECT_EQ(Details(*log, "loud").back(), "error 4999");
  const std::vector<v1::Event> all = log->List("", 0, 100);
  for (size_t i = 1; i < all.size(); ++i)
    EXPECT_LT(all[i - 1].id(), all[i].id());
  EXPECT_EQ(log->Append(Make("a", "next")), 5003u);
}

TEST_F(EventLogTest, ARateIsKeptAndSaysWhatItLeftOut) {
  options_.burst = 3;
  options_.events_per_second = 2;
  const auto log = Open();
  for (int i = 0; i < 10; ++i) log->Append(Make("a", absl::StrCat(i)));
  EXPECT_EQ(log->Append(Make("b", "other run")), 4u);
  EXPECT_THAT(Details(*log, "a"), ElementsAre("0", "1", "2"));
  manual_.Advance(absl::Milliseconds(500));
  log->Append(Make("a", "later"));
  log->Append(Make("a", "too soon"));
  EXPECT_THAT(Details(*log, "a"),
              ElementsAre("0", "1", "2", "later (7 before it were left out)"));
}

}  // namespace
}  // namespace rankprobe
