// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/token_table.h"

#include <sys/stat.h>

#include <fstream>

#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TokenTableTest, FindsHoldersAndNobodyElse) {
  const auto table = TokenTable::Parse(
      "# team\n"
      "operator alice  0123456789abcdef0123\n"
      "agent\tjobs\tfedcba9876543210fedc # all ranks\n"
      "\n");
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->size(), 2u);
  ASSERT_TRUE(table->Find("0123456789abcdef0123").has_value());
  EXPECT_EQ(table->Find("0123456789abcdef0123")->role, Role::kOperator);
  EXPECT_EQ(table->Find("0123456789abcdef0123")->name, "alice");
  EXPECT_EQ(table->Find("fedcba9876543210fedc")->role, Role::kAgent);
  EXPECT_FALSE(table->Find("0123456789abcdef0124").has_value());
  EXPECT_FALSE(table->Find("0123456789abcdef012").has_value());
  EXPECT_FALSE(table->Find("").has_value());
}

TEST(TokenTableTest, EveryFaultIsNamedAndNoTokenIsShown) {
  const auto table = TokenTable::Parse(
      "root alice 0123456789abcdef\n"
      "viewer bob short\n"
      "viewer\n"
      "viewer a 0123456789abcdefX\n"
      "viewer b 0123456789abcdefX\n");
  const std::string message(table.status().message());
  EXPECT_THAT(message, HasSubstr("line 1"));
  EXPECT_THAT(message, HasSubstr("line 2"));
  EXPECT_THAT(message, HasSubstr("line 3"));
  EXPECT_THAT(message, HasSubstr("line 5"));
  EXPECT_THAT(message, Not(HasSubstr("line 4")));
  EXPECT_THAT(message, Not(HasSubstr("0123456789")));
  EXPECT_FALSE(TokenTable::Parse("# nobody\n").ok());
}

TEST(TokenTableTest, ATokenMayHoldTheSignOfAComment) {
  const auto table = TokenTable::Parse(
      "viewer bob 0123456789abcdef#0123  # the whole word is the token\n"
      "viewer eve #fedcba9876543210\n");
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("line 2"))
      << "a comment where the token should be";
  const auto one = TokenTable::Parse("viewer bob 0123456789abcdef#0123 #x\n");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(one->Find("0123456789abcdef#0123").has_value());
  EXPECT_FALSE(one->Find("0123456789abcdef").has_value());
}

TEST(TokenTableTest, AgentsMayBeBoundToARunAndRanks) {
  const auto table = TokenTable::Parse(
      "agent a aaaaaaaaaaaaaaaa run=train ranks=0-3,8 reads=golden # all\n"
      "agent b bbbbbbbbbbbbbbbb\n"
      "agent b cccccccccccccccc\n"
      "operator o oooooooooooooooo\n");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->CountAgents(), 2u);
  const Principal a = *table->Find("aaaaaaaaaaaaaaaa");
  EXPECT_TRUE(a.MayBe("train", 3).ok());
  EXPECT_TRUE(a.MayBe("train", 8).ok());
  EXPECT_TRUE(a.MayBe("train", std::nullopt).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(a.MayBe("train", 4)));
  EXPECT_TRUE(absl::IsPermissionDenied(a.MayBe("golden", 3)));
  EXPECT_TRUE(a.MayReadReference("golden", 77).ok());
  EXPECT_TRUE(a.MayReadReference("train", 0).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(a.MayReadReference("train", 7)));
  EXPECT_TRUE(absl::IsPermissionDenied(a.MayReadReference("other", 0)));
  EXPECT_TRUE(table->Find("bbbbbbbbbbbbbbbb")->MayBe("any", 99).ok());
}

TEST(TokenTableTest, BindingsThatCannotBeReadAreNamed) {
  for (const std::string words :
       {"run=", "runs=a", "ranks=", "ranks=3-1", "ranks=-1", "ranks=a",
        "ranks=0-", "ranks=0,,1", "run=a run=b", "ranks=1 ranks=2",
        "ranks=99999999999999999999"}) {
    const auto table =
        TokenTable::Parse("agent a 0123456789abcdef " + words + "\n");
    EXPECT_THAT(std::string(table.status().message()), HasSubstr("line 1"))
        << words;
  }
  EXPECT_FALSE(
      TokenTable::Parse("operator a 0123456789abcdef run=train\n").ok());
}

TEST(TokenTableTest, AFileThatEverybodyMayReadIsRefused) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens";
  std::ofstream(path) << "viewer bob 0123456789abcdef\n";
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(TokenTable::Load(path).status()));
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_TRUE(TokenTable::Load(path).ok());
  EXPECT_FALSE(TokenTable::Load(path + ".none").ok());
}

}  // namespace
}  // namespace rankprobe
