// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/audit_log.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/testing/fault_file_system.h"
#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

TEST(AuditLogTest, AppendsOneObjectALineAndKeepsOldOnes) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/audit.jsonl";
  const auto file_system = NewPosixFileSystem();
  const ManualClock clock;
  for (const char* run : {"first", "second\n\"run\""}) {
    auto log = AuditLog::Open(path, file_system.get(), &clock);
    ASSERT_TRUE(log.ok()) << log.status();
    AuditRecord record;
    record.actor = "alice";
    record.role = "operator";
    record.action = "SetConfig";
    record.run = run;
    record.outcome = "OK";
    record.epoch = 7;
    ASSERT_TRUE((*log)->Write(record, AuditLog::Durability::kSynced).ok());
  }
  std::ifstream file(path);
  std::string one, two, three;
  ASSERT_TRUE(std::getline(file, one) && std::getline(file, two));
  EXPECT_FALSE(std::getline(file, three));
  EXPECT_THAT(one, HasSubstr("\"run\": \"first\""));
  EXPECT_THAT(one, HasSubstr("\"time\": \"2023-11-14T22:13:20+00:00\""));
  EXPECT_THAT(two, HasSubstr(R"("run": "second\n\"run\"")"));
  EXPECT_THAT(two, HasSubstr("\"epoch\": 7}"));
}

// Each sync delays every later audited call.
TEST(AuditLogTest, OnlyWhatIsAskedForIsSynced) {
  testing::FaultFileSystem fs;
  const ManualClock clock;
  auto log = AuditLog::Open("/audit.jsonl", &fs, &clock);
  ASSERT_TRUE(log.ok()) << log.status();
  int syncs = 0;
  fs.SetDelay([&syncs](const std::string& op) { syncs += op == "Sync"; });
  AuditRecord record;
  record.run = "attempt";
  ASSERT_TRUE((*log)->Write(record, AuditLog::Durability::kWritten).ok());
  EXPECT_EQ(syncs, 0);
  record.run = "outcome";
  ASSERT_TRUE((*log)->Write(record, AuditLog::Durability::kSynced).ok());
  EXPECT_EQ(syncs, 1);
  record.run = "of an agent";
  ASSERT_TRUE((*log)->Write(record, AuditLog::Durability::kWritten).ok());
  EXPECT_EQ(syncs, 1);
  ASSERT_TRUE(fs.SyncDirectory("/").ok());
  fs.CrashAndRestart();
  auto file = fs.OpenForRead("/audit.jsonl");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string text(*fs.FileSize("/audit.jsonl"), '\0');
  ASSERT_TRUE((*file)->Read(0, absl::MakeSpan(text)).ok());
  EXPECT_THAT(text, HasSubstr("attempt"));
  EXPECT_THAT(text, HasSubstr("outcome"));
}

class BoundedAuditLogTest : public ::testing::Test {
 protected:
  void Open() {
    log_.reset();
    auto log = AuditLog::Open(options_, "/d/audit.jsonl", &fs_, &clock_);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  void Write(const std::string& role, const std::string& run) {
    AuditRecord record;
    record.actor = "x\", \"role\": \"operator\"";
    record.role = role;
    record.run = run;
    ASSERT_TRUE(log_->Write(record, AuditLog::Durability::kWritten).ok());
  }
  std::string Text(const std::string& path) {
    if (!fs_.Exists(path)) return "";
    auto file = fs_.OpenForRead(path);
    std::string text(*fs_.FileSize(path), '\0');
    EXPECT_TRUE((*file)->Read(0, absl::MakeSpan(text)).ok());
    return text;
  }
  std::string Both() {
    return Text("/d/audit.jsonl.1") + Text("/d/audit.jsonl");
  }
  static size_t Count(absl::string_view text, absl::string_view what) {
    size_t count = 0;
    for (size_t at = text.find(what); at != absl::string_view::npos;
         at = text.find(what, at + 1))
      ++count;
    return count;
  }

  testing::FaultFileSystem fs_;
  ManualClock clock_;
  AuditLog::Options options_;
  std::unique_ptr<AuditLog> log_;
};

TEST_F(BoundedAuditLogTest, AgentsLinesTurnItOverAndOperatorsLinesStay) {
  options_.max_agent_bytes = 4096;
  ASSERT_TRUE(fs_.CreateDirectories("/d").ok());
  Open();
  for (int i = 0; i < 20; ++i) {
    Write("operator", absl::StrCat("did", i, "."));
    for (int k = 0; k < 20; ++k) Write("agent", absl::StrCat("a", i, "_", k));
    // Also if it is opened again in between.
    if (i % 3 == 0) Open();
  }
  const std::string all = Both();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Count(all, absl::StrCat("\"did", i, ".\"")), 1u) << i;
  EXPECT_EQ(Count(all, "\"a0_0\""), 0u);
  EXPECT_EQ(Count(all, "\"a19_19\""), 1u);
  // Two files of agents' lines, and each operator's line once.
  EXPECT_LT(all.size(), 2 * options_.max_agent_bytes + 20 * 250);
}

TEST_F(BoundedAuditLogTest, AKilledTurnOverLosesNoOperatorsLine) {
  ASSERT_TRUE(fs_.CreateDirectories("/d").ok());
  Open();
  Write("operator", "kept");
  // After the first rename, before the second.
  ASSERT_TRUE(fs_.Rename("/d/audit.jsonl", "/d/audit.jsonl.tmp").ok());
  Open();
  EXPECT_EQ(Count(Text("/d/audit.jsonl"), "\"kept\""), 1u);
  EXPECT_FALSE(fs_.Exists("/d/audit.jsonl.tmp"));
}

TEST_F(BoundedAuditLogTest, AgentsLinesLeaveTheDiskItsReserve) {
  options_.min_free_bytes = 5000;
  ASSERT_TRUE(fs_.CreateDirectories("/d").ok());
  Open();
  fs_.SetCapacity(10000);
  for (int k = 0; k < 100; ++k) Write("agent", absl::StrCat("a", k));
  EXPECT_GE(*fs_.FreeBytes("/d"), options_.min_free_bytes);
  const uint64_t dropped = log_->CountDropped();
  EXPECT_GT(dropped, 50u);
  Write("operator", "may");
  EXPECT_EQ(Count(Both(), "\"may\""), 1u);
  EXPECT_EQ(Count(Both(), "Dropped"), 0u);
  fs_.SetCapacity(1 << 20);
  Write("agent", "again");
  EXPECT_EQ(Count(Both(), "\"again\""), 1u);
  EXPECT_THAT(Both(),
              HasSubstr(absl::StrCat(dropped, " lines of agents' actions")));
  Write("agent", "more");
  EXPECT_EQ(Count(Both(), "Dropped"), 1u) << "told once";
}

}  // namespace
}  // namespace rankprobe
