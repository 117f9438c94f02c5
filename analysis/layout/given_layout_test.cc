// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/given_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Kind = Placement::Kind;

GivenLayout Given(const std::string& text) {
  auto file = ParseLayoutFile("f", "version: 1\n" + text);
  EXPECT_TRUE(file.ok()) << file.status();
  return GivenLayout("f", *file->target);
}

TensorPart Part(int64_t rank) {
  TensorPart out;
  out.rank = rank;
  out.shape = {4, 6};
  return out;
}

std::vector<DumpPlace> Places(const std::vector<int64_t>& ranks) {
  std::vector<DumpPlace> out;
  for (const int64_t rank : ranks) out.emplace_back().rank = rank;
  return out;
}

TEST(GivenLayoutTest, ModelsAreWhatIsNoDataAndNoStage) {
  EXPECT_THAT(Given("mesh: {pp: 2, dp: 2, tp: 2}").ModelGroups(),
              ElementsAre(Pair(0, 0), Pair(1, 0), Pair(2, 2), Pair(3, 2),
                          Pair(4, 4), Pair(5, 4), Pair(6, 6), Pair(7, 6)));
  EXPECT_THAT(Given("mesh: {tp: 2, dp: 2}").ModelGroups(),
              ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 0), Pair(3, 1)));
}

TEST(GivenLayoutTest, TheFirstRuleThatFitsPlaces) {
  GivenLayout given = Given(R"(mesh: {dp: 2, tp: 2}
rules:
- {entry: '*.Column.forward', at: [output, input.mask], place: {tp: shard(-1)}}
- {entry: Module.a, at: output.0, place: {tp: partial}}
- {entry: Module.a, at: grads.weight, place: {dp: shard(0), tp: shard(1)}}
- {entry: Module.b, place: {tp: replicate}}
- {entry: Functional.linear, inside: '*.Row.forward', place: {tp: partial}}
)");
  const std::string forward = "Module.a.Column.forward.0";
  TensorPart part = Part(3);
  auto rule = given.Place({forward, ""}, ".output.0", &part);
  ASSERT_TRUE(rule.ok() && *rule != nullptr);
  EXPECT_THAT(part.mesh->ranks, ElementsAre(2, 3));
  EXPECT_EQ(part.placements[0].dim, 1);
  TensorPart masked = Part(0);
  ASSERT_TRUE(given.Place({forward, ""}, ".input_kwargs.mask", &masked).ok());
  EXPECT_TRUE(masked.mesh.has_value());
  // No rule has the inputs by place.
  TensorPart input = Part(0);
  rule = given.Place({forward, ""}, ".input_args.0", &input);
  EXPECT_TRUE(rule.ok() && *rule == nullptr && !input.mesh.has_value());

  TensorPart backward = Part(0);
  ASSERT_TRUE(
      given.Place({"Module.a.Column.backward.0", ""}, ".output.0", &backward)
          .ok());
  EXPECT_EQ(backward.placements[0].kind, Kind::kPartial);
  TensorPart gradient = Part(1);
  ASSERT_TRUE(given
                  .Place({"Module.a.Column.parameters_grad.0", ""}, ".weight.0",
                         &gradient)
                  .ok());
  EXPECT_THAT(gradient.mesh->ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(gradient.mesh->shape, ElementsAre(2, 2));
  EXPECT_THAT(given.Unused(),
              ElementsAre("nothing is placed by line 7 of f: Module.b",
                          HasSubstr("Functional.linear inside *.Row.forward")));
  for (const char* const parent :
       {"Module.c.Row.forward.0", "Module.c.Row.backward.0", ""}) {
    TensorPart inner = Part(0);
    ASSERT_TRUE(
        given
            .Place({"Functional.linear.1.forward", parent}, ".output.0", &inner)
            .ok());
    EXPECT_EQ(inner.mesh.has_value(), absl::StrContains(parent, "forward"));
  }
}

TEST(GivenLayoutTest, ARuleThatDoesNotFitTheShapeAndWhatIsRecorded) {
  GivenLayout given = Given(R"(mesh: {tp: 2}
rules:
- {entry: Module.a, place: {tp: shard(-3)}}
- {entry: Tensor, place: local}
)");
  TensorPart part = Part(0);
  EXPECT_THAT(
      std::string(given.Place({"Module.a.X.forward.0", ""}, ".output.0", &part)
                      .status()
                      .message()),
      HasSubstr("shard(-3) of line 4 of f is not a dimension of [4, 6]"));
  EXPECT_EQ(given.Place({"Tensor.add.0.forward", ""}, ".output.0", &part)
                .status()
                .message(),
            "each rank's own, by line 5 of f");
  TensorPart recorded = Part(0);
  recorded.mesh = DeviceMesh{{2}, {4, 5}};
  const auto rule =
      given.Place({"Module.a.X.forward.0", ""}, ".output.0", &recorded);
  EXPECT_TRUE(rule.ok() && *rule == nullptr);
  EXPECT_THAT(recorded.mesh->ranks, ElementsAre(4, 5));
  EXPECT_THAT(recorded.placements, IsEmpty());
}

TEST(GivenLayoutTest, RanksThatAreNotThoseOfTheMesh) {
  const GivenLayout given = Given("mesh: {dp: 2, tp: 2}");
  EXPECT_TRUE(given.CheckRanks("it", Places({3, 2, 1, 0})).ok());
  EXPECT_EQ(given.CheckRanks("the target", Places({0, 1, 3})).message(),
            "f: line 2: dp 2 x tp 2 is 4 ranks, the target has no rank 2");
  EXPECT_EQ(given.CheckRanks("it", Places({0, 1, 2, 3, 4})).message(),
            "f: line 2: dp 2 x tp 2 is 4 ranks, it has a rank 4");
}

}  // namespace
}  // namespace rankprobe::analysis
