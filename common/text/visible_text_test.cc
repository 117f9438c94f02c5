// SPDX-License-Identifier: Apache-2.0
#include "common/text/visible_text.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(VisibleText, LeavesWhatCanBeShown) {
  for (const char* text :
       {"", "run 1", "C:\\dir", "größe", "模型", "😀", "\xc2\xa0"})
    EXPECT_EQ(VisibleText(text), text);
}

TEST(VisibleText, EscapesWhatSteersATerminal) {
  EXPECT_EQ(VisibleText("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(VisibleText("a\nrank 0 is fine\r\t\x7f"),
            "a\\nrank 0 is fine\\r\\t\\x7f");
  EXPECT_EQ(VisibleText(absl::string_view("a\0b", 3)), "a\\x00b");
  // CSI as one C1 character, and as a byte of a terminal that is not in UTF-8.
  EXPECT_EQ(VisibleText("\xc2\x9b"
                        "31m"),
            "\\u009b31m");
  EXPECT_EQ(VisibleText("\x9b"
                        "31m"),
            "\\x9b31m");
  // Right-to-left override, isolates, separators of lines.
  EXPECT_EQ(VisibleText("a\u202egnp.exe"), "a\\u202egnp.exe");
  EXPECT_EQ(VisibleText("\u2066\u2069\u2028\u2029\u200f\u061c"),
            "\\u2066\\u2069\\u2028\\u2029\\u200f\\u061c");
}

TEST(VisibleText, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(VisibleText("\xff"), "\\xff");
  EXPECT_EQ(VisibleText("\xc3"), "\\xc3");                    // cut short
  EXPECT_EQ(VisibleText("\xc0\x9b"), "\\xc0\\x9b");           // overlong
  EXPECT_EQ(VisibleText("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(VisibleText("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(VisibleJson, UsesEscapesOfJson) {
  EXPECT_EQ(VisibleJson("{\"a\": \"\u202e\u009b\x7f g\xc3\xbc\"}\n"),
            "{\"a\": \"\\u202e\\u009b\\u007f g\xc3\xbc\"}\n");
}

}  // namespace
}  // namespace rankprobe
