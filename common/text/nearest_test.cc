// SPDX-License-Identifier: Apache-2.0
#include "common/text/nearest.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(NearestTest, ASlipIsRecognised) {
  const std::vector<std::string> verbs = {"enable", "disable", "export",
                                          "overflow_check", "first-divergence"};
  EXPECT_EQ(NearestWord("overflowcheck", verbs), "overflow_check");
  EXPECT_EQ(NearestWord("first_divergance", verbs), "first-divergence");
  EXPECT_EQ(NearestWord("exprot", verbs), "export");
  EXPECT_EQ(NearestWord("Enabel", verbs), "enable");
  EXPECT_EQ(NearestWord("bogus", verbs), "");
  EXPECT_EQ(NearestWord("", verbs), "");
  EXPECT_EQ(NearestWord("enable", {}), "");
  EXPECT_EQ(NearestWord(std::string(1000, 'e'), verbs), "");
}

TEST(NearestTest, ItIsSaidAtTheEndOfALine) {
  EXPECT_EQ(DidYouMean("--inptu", {"--input_path", "--input"}),
            "; did you mean --input?");
  EXPECT_EQ(DidYouMean("x", {"lists"}), "");
}

}  // namespace
}  // namespace rankprobe
