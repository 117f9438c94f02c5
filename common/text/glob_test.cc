// SPDX-License-Identifier: Apache-2.0
#include "common/text/glob.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(GlobTest, StandsForAnyTextOrOneByte) {
  EXPECT_TRUE(GlobMatches("", ""));
  EXPECT_FALSE(GlobMatches("", "a"));
  EXPECT_TRUE(GlobMatches("*", ""));
  EXPECT_TRUE(GlobMatches("a*c", "abbc"));
  EXPECT_TRUE(GlobMatches("a*c", "ac"));
  EXPECT_FALSE(GlobMatches("a*c", "acd"));
  EXPECT_TRUE(GlobMatches("a?c", "abc"));
  EXPECT_FALSE(GlobMatches("a?c", "ac"));
  EXPECT_TRUE(GlobMatches("*.output.?", "Module.fc.Linear.forward.0.output.0"));
  EXPECT_FALSE(GlobMatches("*.output.?", "Torch.add.0.forward.output.10"));
  // The first match of the prefix cannot be continued.
  EXPECT_TRUE(GlobMatches("*ab*abc", "ababababc"));
  // Brackets and dots match themselves.
  EXPECT_TRUE(GlobMatches("[a].b", "[a].b"));
  EXPECT_FALSE(GlobMatches("[a].b", "a.b"));
}

TEST(GlobTest, AHostilePatternTakesNoTime) {
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(4000, 'a')));
}

}  // namespace
}  // namespace rankprobe
