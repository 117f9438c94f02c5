#include "collector/auth/audit_log.h"

#include <fstream>
#include <sstream>

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

// Each sync is a wait of everybody who is audited behind it.
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

}  // namespace
}  // namespace rankprobe
