// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/layout_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = Placement::Kind;

std::vector<std::string> Sizes(const SideLayout& side) {
  std::vector<std::string> out;
  for (const auto& one : side.mesh) {
    out.push_back(absl::StrCat(one.name, one.size, one.data ? " data" : "",
                               one.pipeline ? " pipeline" : ""));
  }
  return out;
}

TEST(LayoutFileTest, MeshAndRules) {
  const auto file = ParseLayoutFile("f", R"(version: 1
mesh: {pp: 2, dp: 2, tp: 2}
rules:
- entry: '*.Column.forward'
  at: [output.0, parameters]
  place: {tp: Shard(dim=-1), dp: replicate}
- {entry: Functional.linear.*, place: {tp: Partial()}}
- {entry: Tensor, inside: Module.embed, place: local}
)");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->by_side);
  for (const auto& side : {file->target, file->reference}) {
    ASSERT_TRUE(side.has_value());
    EXPECT_THAT(Sizes(*side), ElementsAre("pp2 pipeline", "dp2 data", "tp2"));
    EXPECT_EQ(side->ranks(), 8);
    ASSERT_EQ(side->rules.size(), 3U);
    const PlacementRule& rule = side->rules[0];
    EXPECT_EQ(rule.line, 4);
    EXPECT_EQ(rule.entry, "*.Column.forward");
    EXPECT_THAT(rule.at, ElementsAre("output.0", "parameters"));
    ASSERT_EQ(rule.placements.size(), 2U);
    EXPECT_EQ(rule.placements[0].first, 1U);
    EXPECT_EQ(rule.placements[0].second.kind, Kind::kReplicate);
    EXPECT_EQ(rule.placements[1].first, 2U);
    EXPECT_EQ(rule.placements[1].second.kind, Kind::kShard);
    EXPECT_EQ(rule.placements[1].second.dim, -1);
    EXPECT_EQ(side->rules[1].placements[0].second.reduce_op, "sum");
    EXPECT_TRUE(side->rules[2].local);
    EXPECT_EQ(side->rules[2].inside, "Module.embed");
  }
}

// The sizes of graph_visualize, whose order begins with the fastest dimension.
TEST(LayoutFileTest, ParallelSizesMakeAMesh) {
  const auto file =
      ParseLayoutFile("f", R"({"version": 1, "target": {"parallel":
        {"rank_size": 8, "tp": 2, "pp": 2, "order": "tp-cp-ep-dp-pp"}}})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->by_side);
  EXPECT_FALSE(file->reference.has_value());
  EXPECT_THAT(Sizes(*file->target),
              ElementsAre("pp2 pipeline", "dp2 data", "tp2"));
}

TEST(LayoutFileTest, DimensionsOfDataAndStagesHaveOtherNames) {
  const auto file = ParseLayoutFile("f", R"(version: 1
mesh: {stages: 2, batch: 2, dp: 2}
data: batch
pipeline: [stages]
)");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(Sizes(*file->target),
              ElementsAre("stages2 pipeline", "batch2 data", "dp2"));
}

TEST(LayoutFileTest, BadFilesAreRefusedInOneLine) {
  const std::string head = "version: 1\nmesh: {tp: 2, pp: 1}\n";
  const auto rule = [&head](const std::string& text) {
    return absl::StrCat(head, "rules:\n- ", text, "\n");
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "f: expected version, mesh and rules"},
      {"- 1", "f: line 1: expected version, mesh and rules"},
      {"mesh: {tp: 2}", "version is missing"},
      {"version: 2\nmesh: {tp: 2}", "f: line 1: version: only 1 is known"},
      {"version: 1\nmehs: {tp: 2}", "f: line 2: unknown key mehs; there are"},
      {"version: 1", "expected one of mesh and parallel"},
      {head + "parallel: {rank_size: 2}", "expected one of mesh and parallel"},
      {"version: 1\ntarget: {mesh: {tp: 2}}\nmesh: {tp: 2}",
       "f: line 3: unknown key mesh; there are reference, target, version"},
      {"version: 1\nmesh: [2, 2]", "f: line 2: mesh: expected sizes by name"},
      {"version: 1\nmesh: {tp: 0}", "mesh: tp: expected an integer from 1"},
      {"version: 1\nmesh: {tp: two}", "mesh: tp: expected an integer"},
      {"version: 1\nmesh: {tp: 2, tp: 2}", "mesh: tp twice"},
      {"version: 1\nmesh: {a: 60000, b: 60000}", "mesh: more than 65536 ranks"},
      {"version: 1\nparallel: {tp: 2}", "rank_size is missing"},
      {"version: 1\nparallel: {rank_size: 4, tp: 3}",
       "f: line 2: parallel: rank_size 4 is not a multiple of tp 3 x pp 1"},
      {"version: 1\nparallel: {rank_size: 4, tp: 2, order: tp-xx}",
       "no dimension is called 'xx'"},
      {head + "data: [dpp]", "f: line 3: data: the mesh has no dimension dpp"},
      {head + "rules: {}", "rules: expected a list of rules"},
      {rule("text"), "f: line 4: expected a rule"},
      {rule("{at: output, place: {tp: replicate}}"),
       "entry: expected a pattern"},
      {rule("{entry: a, place: {tp: replicate}, plaec: 1}"),
       "unknown key plaec; there are at, entry, inside, place"},
      {rule("{entry: a, entry: b, place: {tp: replicate}}"), "entry"},
      {rule("{entry: a, at: outputs, place: {tp: replicate}}"),
       "f: line 4: at: outputs begins with none of input, output"},
      {rule("{entry: a, inside: [b], place: {tp: replicate}}"),
       "inside: expected a pattern"},
      {rule("{entry: a}"),
       "f: line 4: place: expected placements by dimension"},
      {rule("{entry: a, place: {cp: replicate}}"),
       "place: the mesh has no dimension cp"},
      {rule("{entry: a, place: {pp: replicate}}"),
       "no tensor lies over the stages of pp"},
      {rule("{entry: a, place: {tp: shard}}"),
       "place: shard is not a placement; there are shard(N), replicate"},
      {rule("{entry: a, place: {tp: shard(x)}}"),
       "shard(x) is not a placement"},
      {rule("{entry: a, place: {tp: shard(99999999999999999999)}}"),
       "is not a placement"},
      {rule("{entry: a, place: {tp: partial(max)}}"), "is not a placement"},
      {rule("{entry: a, place: {tp: [0]}}"),
       "a list or map is not a placement"},
      {"version: 1\nmesh: {tp: 2", "f: line "},
  };
  for (const auto& [text, said] : cases) {
    const auto file = ParseLayoutFile("f", text);
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_THAT(std::string(file.status().message()),
                AllOf(StartsWith("f: "), HasSubstr(said)))
        << text;
    EXPECT_EQ(file.status().message().find('\n'), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace rankprobe::analysis
