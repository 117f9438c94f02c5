// SPDX-License-Identifier: Apache-2.0
#include "common/config/request_config.h"

#include "common/config/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

std::string RequestOf(const std::string& json) {
  return ParseConfig(json, {})->plan.request_id;
}

TEST(RequestConfigTest, IsPutIntoTheSectionOfTheTask) {
  const auto out = ConfigForRequest(
      R"({"dump_path": "d", "task": "tensor", "tensor": {"list": ["relu"]}, "statistics": {"request_id": "x"}})",
      "a");
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(
      *out,
      R"({"dump_path":"d","task":"tensor","tensor":{"list":["relu"],"request_id":"a"},"statistics":{"request_id":"x"}})");
  EXPECT_EQ(RequestOf(*out), "a");
}

TEST(RequestConfigTest, OfAConfigWithoutASectionOrATask) {
  for (const std::string& json : std::vector<std::string>{
           R"({"dump_path": "d"})", std::string(DefaultConfigJson())}) {
    EXPECT_EQ(RequestOf(ConfigForRequest(json, "a").value()), "a") << json;
  }
}

TEST(RequestConfigTest, ReplacesWhatWasThereAndTakesItAway) {
  const std::string one =
      ConfigForRequest(R"({"dump_path": "d"})", "a").value();
  const std::string other = ConfigForRequest(one, "q\"\\\n\xc3\xa4%s").value();
  EXPECT_EQ(RequestOf(other), "q\"\\\n\xc3\xa4%s");
  EXPECT_EQ(RequestOf(ConfigForRequest(other, "").value()), "");
  EXPECT_EQ(ConfigForRequest(R"({"dump_path": "d"})", "").value(),
            R"({"dump_path": "d"})");
}

TEST(RequestConfigTest, WhereNoRowsAreCutItIsRefused) {
  for (const char* json : {R"({"dump_path": "d", "task": "structure"})",
                           R"({"dump_path": "d", "level": "debug"})"}) {
    const auto out = ConfigForRequest(json, "a");
    EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << json;
    EXPECT_THAT(std::string(out.status().message()),
                HasSubstr("rows of a request cannot be selected"));
  }
}

TEST(RequestConfigTest, ABadConfigAndALongIdAreRefused) {
  EXPECT_FALSE(ConfigForRequest("{", "a").ok());
  EXPECT_FALSE(ConfigForRequest(R"({"task": "none"})", "a").ok());
  EXPECT_FALSE(ConfigForRequest(R"({"statistics": 7})", "a").ok());
  EXPECT_THAT(std::string(ConfigForRequest(R"({"dump_path": "d"})",
                                           std::string(257, 'x'))
                              .status()
                              .message()),
              HasSubstr("256 bytes"));
}

TEST(WithDumpPathTest, ADumpPathIsAddedWhereThereIsNone) {
  for (const char* const json :
       {"{}", R"({"task": "statistics", "level": "L0"})",
        "{\n  \"step\": [1, 2],\n  \"statistics\": {\"list\": [\"}\"]}\n}\n"}) {
    const std::string config = WithDumpPath(json, "/d \"1\"");
    EXPECT_TRUE(ParseConfig(config, {}).ok()) << config;
    EXPECT_FALSE(ParseConfig(json, {}).ok()) << json;
  }
  for (const char* const json :
       {R"({"dump_path": "/d"})", R"({"dump_path": 3})", "", "[1]", "{",
        R"({"task": "statistics"} and more)"})
    EXPECT_EQ(WithDumpPath(json, "/d \"1\""), json);
}

TEST(WithRanksTest, TheRanksAreThoseThatAreGiven) {
  for (const char* const json :
       {R"({"dump_path": "/d"})", R"({"dump_path": "/d", "rank": [0, 3]})"}) {
    const auto config = ParseConfig(WithRanks(json, {1, 7}), {});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->plan.ranks.Text(), "1,7");
    EXPECT_EQ(config->plan.dump_path, "/d");
  }
  EXPECT_EQ(WithRanks("[1]", {1}), "[1]");
}

}  // namespace
}  // namespace rankprobe
