// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_check.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(JsonCheck, OneWholeValue) {
  for (const char* text :
       {"[[0, 1], [2, 3]]", "{\"mesh\": [0], \"names\": null}", "0",
        "\"g\\u00fc\"", " [1.5e3]\n"})
    EXPECT_TRUE(IsJsonText(text, 16)) << text;
  for (const char* text :
       {"", "[0", "[0] ]", "[0], \"data\": {}", "}", "[NaN]", "[0] // x",
        "{a: 1}", "[\"\x1b\"]", "[\"\xff\"]", "\xef\xbb\xbf[0]", "nul"})
    EXPECT_FALSE(IsJsonText(text, 16)) << text;
  EXPECT_FALSE(IsJsonText(absl::string_view("[0]\0,", 5), 16));
}

TEST(JsonCheck, DepthIsBounded) {
  const auto nested = [](size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_TRUE(IsJsonText(nested(16), 16));
  EXPECT_FALSE(IsJsonText(nested(17), 16));
  EXPECT_FALSE(IsJsonText(std::string(1000000, '['), 16));
  EXPECT_TRUE(IsJsonText("[[[0]], [[0]], [[0]]]", 3))
      << "closed ones count no more";
}

}  // namespace
}  // namespace rankprobe
