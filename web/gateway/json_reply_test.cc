// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/json_reply.h"

#include <google/protobuf/struct.pb.h>

#include <string>

#include "gtest/gtest.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {
namespace {

TEST(JsonReplyTest, AnAnswerNamesThoseWhoWereAway) {
  v1::ListRunsResponse answer;
  answer.add_runs()->set_run("run");
  std::string json;
  ASSERT_TRUE(ToJson(answer, &json).ok());
  const std::string before = json;
  AddAway({}, &json);
  EXPECT_EQ(json, before);
  AddAway({"leaf a:1 \"went\"\n away", "leaf b"}, &json);
  google::protobuf::Struct read;
  ASSERT_TRUE(FromJson(json, &read).ok()) << json;
  EXPECT_EQ(read.fields().at("runs").list_value().values_size(), 1);
  const auto& away = read.fields().at("away").list_value();
  ASSERT_EQ(away.values_size(), 2);
  EXPECT_EQ(away.values(1).string_value(), "leaf b");
  std::string none = "{}";
  AddAway({"x"}, &none);
  EXPECT_EQ(none, "{\"away\":[\"x\"]}");
}

}  // namespace
}  // namespace rankprobe
