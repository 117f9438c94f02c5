// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_requests.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

TEST(GraphRequestsTest, EveryFieldIsRead) {
  const auto request = ParseGraphRequest(
      R"({"db": "a/b.vis.db", "step": 7, "rank": -1, "side": "NPU",)"
      R"( "node": "x\u0041", "pairs": [["a", "b"]], "target": "t",)"
      R"( "reference": "r", "overflowCheck": true, "fuzzy": true,)"
      R"( "layers": true, "again": true, "path": "p"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->db, "a/b.vis.db");
  EXPECT_EQ(request->step, 7);
  EXPECT_EQ(request->rank, -1);
  EXPECT_EQ(request->side, "NPU");
  EXPECT_EQ(request->node, "xA");
  ASSERT_EQ(request->pairs.size(), 1u);
  EXPECT_EQ(request->pairs[0].second, "b");
  EXPECT_EQ(request->target, "t");
  EXPECT_EQ(request->reference, "r");
  EXPECT_TRUE(request->overflow_check && request->fuzzy && request->layers &&
              request->again);
  EXPECT_EQ(request->path, "p");
}

TEST(GraphRequestsTest, WhatIsNoRequestIsRefusedInOneLine) {
  const std::string many =
      absl::StrCat("{\"node\":\"", std::string(70'000, 'n'), "\"}");
  std::string pairs = "{\"pairs\":[[\"a\",\"b\"]";
  for (size_t i = 0; i < kMostGraphPairs; ++i) pairs += ",[\"a\",\"b\"]";
  pairs += "]}";
  const std::pair<std::string, const char*> bad[] = {
      {"", "not JSON"},
      {"{", "not JSON"},
      {"[]", "not a JSON object"},
      {"{} {}", "not JSON"},
      {"{\"db\":1}", "db: no text"},
      {"{\"step\":1.5}", "step: not an integer"},
      {"{\"step\":\"1\"}", "step: not an integer"},
      {"{\"rank\":99999999999999999999}", "rank: not an integer"},
      {"{\"fuzzy\":1}", "fuzzy: neither true nor false"},
      {"{\"pairs\":[[\"a\"]]}", "a pair is a list of two names"},
      {"{\"pairs\":{}}", "pairs: no list"},
      {"{\"sql\":\"DROP TABLE\"}", "sql: there is no such field"},
      {"{\"pairs\":[[[[[[\"a\"]]]]]]}", "not JSON"},
      {many, "longer than 64 KiB"},
      {pairs, "more than 10000"},
  };
  for (const auto& [body, reason] : bad) {
    const auto request = ParseGraphRequest(body);
    ASSERT_FALSE(request.ok()) << body.substr(0, 80);
    EXPECT_THAT(request.status().message(), HasSubstr(reason));
    EXPECT_EQ(request.status().message().find('\n'), std::string::npos);
  }
}

TEST(GraphRequestsTest, AMappingComesBackAsItWent) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"Torch.a.0.forward", "Torch.b.0.forward"}, {"\"<img>\n", "\\"}};
  const auto read = ParseMapping(MappingText(pairs));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, pairs);
}

TEST(GraphRequestsTest, AMappingOfOneNodeToTwoIsRefused) {
  for (const char* text :
       {"{\"a\":\"x\",\"b\":\"x\"}", "{\"a\":\"x\",\"a\":\"y\"}", "[\"a\"]",
        "{\"a\":1}", "{\"a\":{\"b\":\"c\"}}", "", "null"}) {
    EXPECT_FALSE(ParseMapping(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rankprobe
