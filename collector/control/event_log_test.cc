#include "collector/control/event_log.h"

#include "absl/strings/str_cat.h"
#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;

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
  }
  std::unique_ptr<EventLog> Open() {
    auto log = EventLog::Open(options_, file_system_.get(), &manual_);
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
  const uint64_t size = *file_system_->FileSize(options_.path);
  for (uint64_t cut = 1; cut < 20; cut += 3) {
    ASSERT_TRUE(file_system_->Truncate(options_.path, size - cut).ok());
    {
      const auto log = Open();
      EXPECT_THAT(Details(*log, ""), ElementsAre("one"));
      log->Append(Make("a", "two"));
    }
    EXPECT_THAT(Details(*Open(), ""), ElementsAre("one", "two"));
    ASSERT_EQ(*file_system_->FileSize(options_.path), size);
  }
}

TEST_F(EventLogTest, TurnsTheFileOverAndForgetsInMemory) {
  options_.max_file_bytes = 200;
  options_.max_in_memory = 5;
  {
    const auto log = Open();
    for (int i = 0; i < 50; ++i) log->Append(Make("a", absl::StrCat(i)));
    EXPECT_THAT(Details(*log, ""), ElementsAre("45", "46", "47", "48", "49"));
  }
  EXPECT_LT(*file_system_->FileSize(options_.path), 300u);
  const auto log = Open();
  EXPECT_THAT(Details(*log, ""), ElementsAre("45", "46", "47", "48", "49"));
  EXPECT_EQ(log->Append(Make("a", "x")), 51u);
}

}  // namespace
}  // namespace rankprobe
