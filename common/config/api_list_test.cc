// SPDX-License-Identifier: Apache-2.0
#include "common/config/api_list.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ApiListTest, ReadsTheFormOfSupportWrapOps) {
  const auto list = ParseApiList(
      "# what is recorded\n"
      "---\n"
      "torch:\n"
      "  - linalg.norm  # a path\n"
      "functional:\n"
      "- relu\r\n"
      "  - 'gelu'\n"
      "aten:\n"
      "  - relu\n"
      "_VF: []\n"
      "torch:\n"
      "  - \"add\"\n");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(*list,
              ElementsAre(Pair("Torch", ElementsAre("linalg.norm", "add")),
                          Pair("Functional", ElementsAre("relu", "gelu")),
                          Pair("VF", IsEmpty())));
}

TEST(ApiListTest, ReadsJson) {
  const auto list = ParseApiList(
      " {\"Torch\": [\"linalg.norm\"], \"Functional\": [], \"VF\": [\"f\"]}");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(*list, ElementsAre(Pair("Torch", ElementsAre("linalg.norm")),
                                 Pair("Functional", IsEmpty()),
                                 Pair("VF", ElementsAre("f"))));
}

TEST(ApiListTest, JsonMayNameTheSectionsOfSupportWrapOps) {
  const auto list = ParseApiList(
      "{\"functional\": [\"relu\"], \"_VF\": [\"f\"], \"aten\": [\"relu\"], "
      "\"Functional\": [\"gelu\"]}");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(*list,
              ElementsAre(Pair("Functional", ElementsAre("relu", "gelu")),
                          Pair("VF", ElementsAre("f"))));
}

TEST(ApiListTest, FaultsSayTheirPlace) {
  for (const auto& [text, said] :
       std::initializer_list<std::pair<std::string, std::string>>{
           {"", "empty"},
           {" \n\t", "empty"},
           {"- relu\n", "line 1: expected '- NAME' below"},
           {"functional:\n  relu\n", "line 2"},
           {"functional: [relu]\n", "line 1: expected names"},
           {"nothing:\n  - relu\n", "line 1: expected one of the sections"},
           {"functional\n", "line 1"},
           {"functional:\n  - a: b\n", "line 2"},
           {"functional:\n  - \n", "line 2"},
           {"functional:\n  - 9\n", "line 2"},
           {"functional:\n  - \x1b[2J\n", "line 2"},
           {"{", "line 1"},
           {"{\"Torch\": 3}", "Torch: expected a list"},
           {"{\"Torch\": [3]}", "Torch: 3 is not"},
           {"{\"Torch\": [\"a b\"]}", "\"a b\" is not"},
           {"{\"\\u001b\": 3}", "expected one of Functional, Tensor"},
           {"{\"nosuch\": [\"relu\"]}", "nosuch: no functions"},
           {"{\"\": [\"relu\"]}", "expected one of Functional, Tensor"},
           {"{}", "empty"},
           {"{\"Torch\": [], \"aten\": [\"relu\"]}", "empty"},
           {"torch: []\naten:\n  - relu\n", "empty"},
           {"# nothing\n", "empty"},
           {std::string(kMaxApiListBytes + 1, '#'), "262145 bytes"}}) {
    const auto list = ParseApiList(text);
    ASSERT_FALSE(list.ok()) << text.substr(0, 50);
    EXPECT_THAT(std::string(list.status().message()), HasSubstr(said));
    EXPECT_EQ(list.status().message().find('\x1b'), std::string::npos);
  }
}

}  // namespace
}  // namespace rankprobe
