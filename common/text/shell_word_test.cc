// SPDX-License-Identifier: Apache-2.0
#include "common/text/shell_word.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(ShellWordTest, OnlyWhatAShellReadsIntoIsQuoted) {
  EXPECT_EQ(ShellWord("run:train@3-5/rank0"), "run:train@3-5/rank0");
  EXPECT_EQ(ShellWord(""), "''");
  EXPECT_EQ(ShellWord("a b"), "'a b'");
  EXPECT_EQ(ShellWord("*.grad"), "'*.grad'");
  EXPECT_EQ(ShellWord("it's; $(x)"), "'it'\\''s; $(x)'");
}

}  // namespace
}  // namespace rankprobe
