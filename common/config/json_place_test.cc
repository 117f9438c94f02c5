// SPDX-License-Identifier: Apache-2.0
#include "common/config/json_place.h"

#include <string>

#include "common/config/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;

std::string At(absl::string_view json, absl::string_view path) {
  const auto place = PlaceOfKey(json, path);
  if (!place.has_value()) return "none";
  return std::to_string(place->line) + ":" + std::to_string(place->column);
}

TEST(JsonPlaceTest, KeysAreFoundWhereTheyStand) {
  constexpr char kJson[] =
      "{\n"
      "  \"a\": {\"x\": [1, {\"y\": 2}], \"list\": \"}\\\"{\"},\n"
      "  \"\xC3\xA4\": 0, \"list\": [ ],\n"
      "\t\"b\" : { \"list\" : null , \"c.d\":-1.5e3}\n"
      "}\n";
  EXPECT_EQ(At(kJson, "a"), "2:3");
  EXPECT_EQ(At(kJson, "a.list"), "2:29");
  EXPECT_EQ(At(kJson, "a.x.y"), "2:19") << "an item of a list";
  EXPECT_EQ(At(kJson, "list"), "3:11") << "characters, not bytes";
  EXPECT_EQ(At(kJson, "b.list"), "4:10");
  EXPECT_EQ(At(kJson, "b.c.d"), "4:26") << "a dot in a key";
  for (const char* gone : {"c", "a.b", "list.a", "a.x.z", ""})
    EXPECT_EQ(At(kJson, gone), "none") << gone;
  EXPECT_EQ(At("[]", "a"), "none");
  EXPECT_EQ(At("7", "a"), "none");
}

std::string FileError(absl::string_view json) {
  const auto result = ParseConfigFile("c.json", json, UnknownKeys::kRefuse);
  EXPECT_FALSE(result.ok()) << json;
  return std::string(result.status().message());
}

TEST(JsonPlaceTest, EachFaultOfAFileSaysWhere) {
  EXPECT_EQ(FileError("{\n \"dump_path\": \"d\",\n \"task\": \"tensors\",\n"
                      " \"statistics\": {\"lst\": []}, \"steps\": []}"),
            "c.json:3:2: task: \"tensors\" is not legal; expected one of "
            "statistics, tensor, structure, monitor\n"
            "c.json:4:17: unknown key statistics.lst; did you mean list?\n"
            "c.json:4:29: unknown key steps; did you mean step?")
      << "with a task that is none the section of the default is read";
  EXPECT_EQ(FileError("{\"task\": \"tensor\"}"),
            "c.json: dump_path is missing: add \"dump_path\": \"./dump\"");
  EXPECT_THAT(FileError("{\n \"task\": tensor}"),
              Eq("c.json:2:11: not valid JSON: Invalid value."));
  EXPECT_THAT(FileError("[]"), HasSubstr("c.json: not a JSON object"));
  EXPECT_THAT(
      FileError("{\"dump_path\": \"d\", \"task\": \"tensor\", \"tensor\":\n"
                "{\"slice\": [{\"dim\": 0, \"begin\": \"x\", \"end\": 1}]}}"),
      HasSubstr("c.json:2:23: tensor.slice.begin: \"x\" is not legal"));
}

TEST(JsonPlaceTest, WarningsSayWhereToo) {
  const auto result = ParseConfigFile(
      "c.json", "{\"dump_path\": \"d\",\n\"keep_all_ranks\": 1}",
      UnknownKeys::kWarn);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->warnings,
              ElementsAre("c.json:2:1: unknown key keep_all_ranks"));
}

}  // namespace
}  // namespace rankprobe
