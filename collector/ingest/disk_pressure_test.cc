// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/disk_pressure.h"

#include <string>

#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FaultFileSystem;

class DiskPressureTest : public ::testing::Test {
 protected:
  // 1,000 bytes are in use; the disk's size makes that the given percentage.
  void SetUp() override {
    auto file = fs_.OpenForWrite("/d/f", FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append(std::string(69300, 'x')).ok());
  }
  // Sets the fill level, in tenths of a percent of what may be used.
  void Fill(uint64_t tenths) {
    fs_.SetCapacity(fs_.used_bytes() * 1000 / tenths + min_free_);
  }
  DiskPressure Make(uint64_t high, uint64_t full) {
    return DiskPressure({"/d", high, full, min_free_}, &fs_, &clock_);
  }

  FaultFileSystem fs_;
  ManualClock clock_;
  uint64_t min_free_ = 0;
};

TEST_F(DiskPressureTest, LevelsBeginWhereTheyAreSaidToAndEndFivePercentBelow) {
  DiskPressure pressure = Make(70, 90);
  const auto at = [&](uint64_t tenths) {
    Fill(tenths);
    pressure.Look();
    return pressure.level();
  };
  EXPECT_EQ(at(100), v1::DiskState::LEVEL_ROOM);
  EXPECT_EQ(pressure.credit(), v1::PAYLOAD_CREDIT_TAKEN);
  EXPECT_EQ(at(695), v1::DiskState::LEVEL_ROOM);
  EXPECT_EQ(at(705), v1::DiskState::LEVEL_HIGH);
  EXPECT_EQ(pressure.credit(), v1::PAYLOAD_CREDIT_NOT_NOW);
  EXPECT_EQ(at(655), v1::DiskState::LEVEL_HIGH) << "no to and fro";
  EXPECT_EQ(at(645), v1::DiskState::LEVEL_ROOM);
  EXPECT_EQ(at(695), v1::DiskState::LEVEL_ROOM);
  EXPECT_EQ(at(895), v1::DiskState::LEVEL_HIGH);
  EXPECT_EQ(at(905), v1::DiskState::LEVEL_FULL);
  EXPECT_EQ(pressure.credit(), v1::PAYLOAD_CREDIT_NONE);
  EXPECT_EQ(at(855), v1::DiskState::LEVEL_FULL);
  EXPECT_EQ(at(845), v1::DiskState::LEVEL_HIGH);
  EXPECT_EQ(at(905), v1::DiskState::LEVEL_FULL);
  EXPECT_EQ(at(655), v1::DiskState::LEVEL_HIGH);
  EXPECT_EQ(at(100), v1::DiskState::LEVEL_ROOM);
  EXPECT_EQ(at(1000), v1::DiskState::LEVEL_FULL);
  EXPECT_EQ(pressure.State().used_percent(), 100u);
}

TEST_F(DiskPressureTest, FullIsWhereWritingStops) {
  min_free_ = 1 << 20;
  DiskPressure pressure = Make(70, 90);
  // A tenth of the disk is reserved.
  Fill(905);
  EXPECT_TRUE(pressure.Look());
  EXPECT_EQ(pressure.level(), v1::DiskState::LEVEL_FULL);
  fs_.SetCapacity(fs_.used_bytes() + min_free_ - 1);
  EXPECT_FALSE(pressure.Look());
  EXPECT_EQ(pressure.State().used_percent(), 100u);
}

TEST_F(DiskPressureTest, EachIsOffWhereItIsNotSaid) {
  DiskPressure high = Make(70, 0), full = Make(0, 90);
  Fill(990);
  EXPECT_TRUE(high.Look());
  EXPECT_EQ(high.level(), v1::DiskState::LEVEL_HIGH);
  EXPECT_TRUE(full.Look());
  EXPECT_EQ(full.level(), v1::DiskState::LEVEL_FULL);
  Fill(845);
  EXPECT_TRUE(full.Look());
  EXPECT_EQ(full.level(), v1::DiskState::LEVEL_ROOM);
}

TEST_F(DiskPressureTest, SaysOnceWhatItIsAndWhatCameOfIt) {
  DiskPressure pressure = Make(70, 90);
  EXPECT_FALSE(pressure.Look());
  pressure.CountRefused(5);
  Fill(750);
  EXPECT_TRUE(pressure.Look());
  EXPECT_FALSE(pressure.Look());
  EXPECT_EQ(pressure.LastChange().what,
            "the collector's disk is 75 % full (/d)");
  pressure.CountRefused(100);
  pressure.CountRefused(200);
  clock_.Advance(absl::Minutes(10));
  Fill(950);
  EXPECT_TRUE(pressure.Look());
  clock_.Advance(absl::Seconds(90));
  Fill(100);
  EXPECT_TRUE(pressure.Look());
  EXPECT_EQ(pressure.LastChange().outcome,
            "payloads are taken again; in 11m30s 2 were refused");
  EXPECT_EQ(pressure.State().refused_payloads(), 3u);
  EXPECT_EQ(pressure.State().refused_payload_bytes(), 305u);
}

TEST_F(DiskPressureTest, ADiskThatDoesNotAnswerChangesNothing) {
  DiskPressure pressure = Make(70, 90);
  Fill(750);
  EXPECT_TRUE(pressure.Look());
  Fill(100);
  for (const char* const call : {"FreeBytes", "CapacityBytes"}) {
    fs_.FailWhile([call](const std::string& op, const std::string&) {
      return op == call ? testing::FaultKind::kIoError
                        : testing::FaultKind::kNone;
    });
    EXPECT_FALSE(pressure.Look());
    EXPECT_EQ(pressure.level(), v1::DiskState::LEVEL_HIGH);
  }
  fs_.FailWhile(nullptr);
  EXPECT_TRUE(pressure.Look());
}

}  // namespace
}  // namespace rankprobe
