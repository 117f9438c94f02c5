#include "collector/auth/audit_log.h"

#include <fstream>
#include <sstream>

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
    ASSERT_TRUE((*log)->Write(record).ok());
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

}  // namespace
}  // namespace rankprobe
