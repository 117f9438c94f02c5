// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/layout_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "analysis/layout/layout_execute.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using Kind = Placement::Kind;

// Facts for ranks that do not share a model.
LayoutFacts Alone() { return {}; }

LayoutFacts OneModel(int64_t ranks) {
  LayoutFacts facts;
  for (int64_t rank = 0; rank < ranks; ++rank) facts.model_groups[rank] = 0;
  return facts;
}

// A tensor of doubles and its rank.
struct Local {
  TensorPart part;
  std::vector<double> values;
};

Local Tensor(int64_t rank, std::vector<int64_t> shape,
             std::vector<double> values) {
  Local out;
  out.part.rank = rank;
  out.part.dtype = "torch.float64";
  out.part.shape = std::move(shape);
  if (!values.empty()) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    out.part.stats[kMax] = {*high, ""};
    out.part.stats[kMin] = {*low, ""};
    out.part.stats[kMean] = {
        std::accumulate(values.begin(), values.end(), 0.0) /
            static_cast<double>(values.size()),
        ""};
  }
  out.values = std::move(values);
  return out;
}

Local OnMesh(DeviceMesh mesh, std::vector<Placement> placements, Local local) {
  local.part.mesh = std::move(mesh);
  local.part.placements = std::move(placements);
  return local;
}

std::vector<TensorPart> PartsOf(const std::vector<Local>& locals) {
  std::vector<TensorPart> out;
  out.reserve(locals.size());
  for (const Local& local : locals) out.push_back(local.part);
  return out;
}

// The elements of the joined tensor, or the reason why it cannot be joined.
std::string Joined(const std::vector<Local>& locals,
                   const LayoutFacts& facts = Alone(),
                   const TensorPart* whole = nullptr) {
  const std::vector<TensorPart> parts = PartsOf(locals);
  auto planned = PlanTensor(parts, whole, facts);
  if (!planned.ok()) return std::string(planned.status().message());
  (void)ChooseCopies(parts, whole == nullptr ? nullptr : &whole->stats,
                     &planned->plan);
  const auto tensor =
      JoinBytes(planned->plan, [&](size_t i) -> absl::StatusOr<AlignedTensor> {
        AlignedTensor out;
        out.dtype = v1::DTYPE_FLOAT64;
        out.shape = locals[i].part.shape;
        out.bytes.emplace(locals[i].values.size() * sizeof(double), '\0');
        // An empty part has no address.
        if (!out.bytes->empty()) {
          std::memcpy(out.bytes->data(), locals[i].values.data(),
                      out.bytes->size());
        }
        return out;
      });
  if (!tensor.ok()) return std::string(tensor.status().message());
  EXPECT_EQ(tensor->shape, planned->plan.shape);
  std::string out = SizesText(tensor->shape);
  for (size_t i = 0; i < tensor->bytes->size(); i += sizeof(double)) {
    double value = 0;
    std::memcpy(&value, tensor->bytes->data() + i, sizeof(value));
    absl::StrAppend(&out, " ", value);
  }
  return out;
}

const Placement kCopy = {Kind::kReplicate, 0, ""};
const Placement kSumOf = {Kind::kPartial, 0, "sum"};
Placement Shard(int64_t dim) { return {Kind::kShard, dim, ""}; }
Placement Strided(int64_t dim) { return {Kind::kStridedShard, dim, ""}; }

const DeviceMesh kPair = {{2}, {0, 1}};
const DeviceMesh kSquare = {{2, 2}, {0, 1, 2, 3}};

TEST(LayoutPlanTest, UnevenShardsAreConcatenated) {
  EXPECT_EQ(Joined({OnMesh(kPair, {Shard(1)}, Tensor(0, {2, 2}, {1, 2, 4, 5})),
                    OnMesh(kPair, {Shard(1)}, Tensor(1, {2, 1}, {3, 6}))}),
            "[2, 3] 1 2 3 4 5 6");
  // The last rank has no elements.
  EXPECT_EQ(Joined({OnMesh(kPair, {Shard(0)}, Tensor(0, {1, 2}, {1, 2})),
                    OnMesh(kPair, {Shard(0)}, Tensor(1, {0, 2}, {}))}),
            "[1, 2] 1 2");
}

TEST(LayoutPlanTest, AMeshSaysTheOrderOfItsRanks) {
  const DeviceMesh turned = {{2}, {1, 0}};
  EXPECT_EQ(Joined({OnMesh(turned, {Shard(0)}, Tensor(0, {1}, {2})),
                    OnMesh(turned, {Shard(0)}, Tensor(1, {1}, {1}))}),
            "[2] 1 2");
}

TEST(LayoutPlanTest, TwoDimensionsOfAMeshOnTwoOfTheTensor) {
  const std::vector<Placement> p = {Shard(0), Shard(1)};
  EXPECT_EQ(Joined({OnMesh(kSquare, p, Tensor(0, {1, 1}, {1})),
                    OnMesh(kSquare, p, Tensor(1, {1, 1}, {2})),
                    OnMesh(kSquare, p, Tensor(2, {1, 1}, {3})),
                    OnMesh(kSquare, p, Tensor(3, {1, 1}, {4}))}),
            "[2, 2] 1 2 3 4");
}

// [0 1 2 3]: tensor parallel splits first, into {0 1} and {2 3}; FSDP then
// splits each.
TEST(LayoutPlanTest, AStridedShardWasCutLast) {
  const std::vector<Placement> p = {Strided(0), Shard(0)};
  EXPECT_EQ(Joined({OnMesh(kSquare, p, Tensor(0, {1}, {0})),
                    OnMesh(kSquare, p, Tensor(1, {1}, {2})),
                    OnMesh(kSquare, p, Tensor(2, {1}, {1})),
                    OnMesh(kSquare, p, Tensor(3, {1}, {3}))}),
            "[4] 0 1 2 3");
  const std::vector<Placement> plain = {Shard(0), Shard(0)};
  EXPECT_EQ(Joined({OnMesh(kSquare, plain, Tensor(0, {1}, {0})),
                    OnMesh(kSquare, plain, Tensor(1, {1}, {1})),
                    OnMesh(kSquare, plain, Tensor(2, {1}, {2})),
                    OnMesh(kSquare, plain, Tensor(3, {1}, {3}))}),
            "[4] 0 1 2 3");
}

TEST(LayoutPlanTest, AGradientOfAnotherCallIsRefused) {
  LayoutFacts facts = OneModel(2);
  const std::vector<Local> copies = {Tensor(0, {2}, {1, 2}),
                                     Tensor(1, {2}, {1, 2})};
  const TensorPart other = Tensor(0, {3, 2}, {1, 2, 3, 4, 5, 6}).part;
  const TensorPart same = Tensor(0, {2}, {1, 2}).part;
  facts.function_gradients = true;
  EXPECT_THAT(Joined({copies[0]}, facts, &other),
              HasSubstr("a gradient of the call before it"));
  EXPECT_EQ(Joined(copies, facts, &same), "[2] 1 2");
  facts.function_gradients = false;
  EXPECT_EQ(Joined({copies[0]}, facts, &other), "[2] 1 2");
}

TEST(LayoutPlanTest, TheLossOfAPartOfTheBatchIsItsOwn) {
  LayoutFacts facts = Alone();
  const std::vector<Local> halves = {Tensor(0, {}, {0.5}),
                                     Tensor(1, {}, {0.5})};
  const TensorPart one = Tensor(0, {}, {1}).part;
  facts.function_gradients = true;
  EXPECT_EQ(Joined(halves, facts, &one), "[] 0.5");
  facts.split_batch = true;
  EXPECT_THAT(Joined(halves, facts, &one), HasSubstr("(its loss)"));
  facts.function_gradients = false;
  EXPECT_EQ(Joined(halves, facts, &one), "[] 0.5");
}

// Tokens of experts are on the first dimension: two ranks' sizes that add up on
// another one do so by chance.
TEST(LayoutPlanTest, ExpertsShareTheFirstDimension) {
  LayoutFacts facts = OneModel(2);
  const std::vector<Local> columns = {Tensor(0, {2, 1}, {1, 2}),
                                      Tensor(1, {2, 1}, {3, 4})};
  const TensorPart rows = Tensor(0, {4, 1}, {1, 2, 3, 4}).part;
  const TensorPart square = Tensor(0, {2, 2}, {1, 3, 2, 4}).part;
  EXPECT_EQ(Joined(columns, facts, &square), "[2, 2] 1 3 2 4");
  facts.inside_experts = true;
  EXPECT_EQ(Joined(columns, facts, &rows), "[4, 1] 1 2 3 4");
  EXPECT_THAT(Joined(columns, facts, &square), HasSubstr("does not add up"));
}

TEST(LayoutPlanTest, NanInsideOfExpertsIsNoCopy) {
  LayoutFacts facts = OneModel(2);
  const double nan = std::nan("");
  const std::vector<Local> ranks = {Tensor(0, {1}, {nan}),
                                    Tensor(1, {1}, {nan})};
  const TensorPart whole = Tensor(0, {1}, {1}).part;
  EXPECT_EQ(Joined(ranks, facts, &whole), "[1] nan");
  facts.inside_experts = true;
  EXPECT_THAT(Joined(ranks, facts, &whole), HasSubstr("inside of experts"));
}

TEST(LayoutPlanTest, NumbersOfPartsOfTheBatchAddUp) {
  JsonDocument document;
  ASSERT_TRUE(document
                  .Parse(R"([{"type":"int","value":1},{"type":"int","value":3},
                             {"type":"int","value":4},
                             {"type":"float","value":4}])")
                  .ok());
  const auto& [one, three, four, text] =
      std::tie(document.root().items()[0], document.root().items()[1],
               document.root().items()[2], document.root().items()[3]);
  LayoutFacts facts = Alone();
  const std::vector<RankValue> parts = {{0, &one}, {1, &three}};
  EXPECT_FALSE(PartsOfANumber(parts, four, facts));
  facts.split_batch = true;
  EXPECT_TRUE(PartsOfANumber(parts, four, facts));
  EXPECT_FALSE(PartsOfANumber(parts, three, facts));
  EXPECT_FALSE(PartsOfANumber(parts, text, facts));
  EXPECT_FALSE(PartsOfANumber({{0, &text}}, four, facts));
  EXPECT_FALSE(PartsOfANumber({{0, &four}}, four, facts));
  // Ranks of one model have one part.
  facts.model_groups = {{0, 0}, {1, 0}, {2, 2}};
  EXPECT_TRUE(PartsOfANumber({{0, &one}, {1, &one}, {2, &three}}, four, facts));
  EXPECT_FALSE(PartsOfANumber(parts, four, facts));
}

TEST(LayoutPlanTest, TermsAddUpByTheirBytesOnly) {
  const std::vector<Local> terms = {
      OnMesh(kPair, {kSumOf}, Tensor(0, {2}, {1, 2})),
      OnMesh(kPair, {kSumOf}, Tensor(1, {2}, {10, 20}))};
  EXPECT_EQ(Joined(terms), "[2] 11 22");
  const std::vector<TensorPart> parts = PartsOf(terms);
  const auto planned = PlanTensor(parts, nullptr, Alone());
  ASSERT_TRUE(planned.ok());
  EXPECT_TRUE(HasSum(planned->plan));
  const PartStats stats = JoinStatistics(planned->plan, parts).stats;
  EXPECT_DOUBLE_EQ(stats[kMean]->value, 16.5);
  EXPECT_FALSE(stats[kMax].has_value());
  const Placement largest = {Kind::kPartial, 0, "max"};
  EXPECT_THAT(Joined({OnMesh(kPair, {largest}, Tensor(0, {1}, {1})),
                      OnMesh(kPair, {largest}, Tensor(1, {1}, {2}))}),
              HasSubstr("Partial(max) is not assembled"));
}

TEST(LayoutPlanTest, OfCopiesThatDifferTheWorstIsTaken) {
  const TensorPart whole = Tensor(0, {1}, {1}).part;
  for (const double wrong : {7.0, -7.0}) {
    std::vector<Local> copies = {
        OnMesh(kPair, {kCopy}, Tensor(0, {1}, {1})),
        OnMesh(kPair, {kCopy}, Tensor(1, {1}, {wrong}))};
    EXPECT_EQ(Joined(copies, Alone(), &whole), absl::StrCat("[1] ", wrong));
    const std::vector<TensorPart> parts = PartsOf(copies);
    auto planned = PlanTensor(parts, &whole, Alone());
    ASSERT_TRUE(planned.ok());
    EXPECT_EQ(ChooseCopies(parts, &whole.stats, &planned->plan),
              "ranks 0 and 1");
  }
  // A rank that did not wait for its copy does not contradict the other.
  std::vector<Local> copies = {OnMesh(kPair, {kCopy}, Tensor(0, {1}, {})),
                               OnMesh(kPair, {kCopy}, Tensor(1, {1}, {1}))};
  copies[0].part.waiting = true;
  EXPECT_EQ(Joined(copies, Alone(), &whole), "[1] 1");
}

TEST(LayoutPlanTest, WhatIsNotThereOrPlacedInOtherWaysIsRefused) {
  EXPECT_THAT(Joined({OnMesh(kPair, {Shard(0)}, Tensor(0, {1}, {1}))}),
              HasSubstr("rank 1 of its mesh [0, 1] recorded no such tensor"));
  EXPECT_THAT(Joined({OnMesh(kPair, {Shard(0)}, Tensor(0, {1}, {1})),
                      OnMesh(kPair, {kCopy}, Tensor(1, {1}, {1}))}),
              HasSubstr("ranks 0 and 1 placed it in other ways"));
  EXPECT_THAT(Joined({OnMesh(kPair, {Shard(3)}, Tensor(0, {1}, {1})),
                      OnMesh(kPair, {Shard(3)}, Tensor(1, {1}, {1}))}),
              HasSubstr("sharded on dimension 3 of [1]"));
  EXPECT_THAT(Joined({OnMesh(kPair, {Shard(0)}, Tensor(0, {1, 2}, {1, 2})),
                      OnMesh(kPair, {Shard(0)}, Tensor(1, {1, 1}, {1}))}),
              HasSubstr("its shards do not fit on dimension 0"));
  EXPECT_THAT(Joined({OnMesh(kSquare, {Shard(0)}, Tensor(0, {1}, {1})),
                      OnMesh(kSquare, {Shard(0)}, Tensor(1, {1}, {1})),
                      OnMesh(kSquare, {Shard(0)}, Tensor(2, {1}, {1})),
                      OnMesh(kSquare, {Shard(0)}, Tensor(3, {1}, {1}))}),
              HasSubstr("a mesh of 2 dimensions with 1 placements"));
}

TEST(LayoutPlanTest, PlainTensorsOfOneModelAreToldByTheOtherRunsShape) {
  const std::vector<Local> heads = {Tensor(0, {1, 2}, {1, 2}),
                                    Tensor(1, {1, 2}, {3, 4})};
  const TensorPart whole = Tensor(0, {1, 4}, {1, 2, 3, 4}).part;
  EXPECT_EQ(Joined(heads, OneModel(2), &whole), "[1, 4] 1 2 3 4");
  // The ranks do not share a model, so their values may differ.
  EXPECT_THAT(Joined(heads, Alone(), &whole), HasSubstr("share no model"));
  const TensorPart other = Tensor(0, {1, 3}, {1, 2, 3}).part;
  EXPECT_THAT(Joined(heads, OneModel(2), &other),
              HasSubstr("does not add up to the other run's [1, 3]"));
  EXPECT_THAT(Joined(heads, OneModel(2)),
              HasSubstr("nothing that distinguishes copies from parts"));
  const TensorPart same = Tensor(0, {1, 2}, {1, 2}).part;
  EXPECT_EQ(Joined(heads, OneModel(2), &same), "[1, 2] 3 4");
}

TEST(LayoutPlanTest, BatchesAreJoinedOnTheUsersWordOnly) {
  const std::vector<Local> rows = {Tensor(0, {1, 2}, {1, 2}),
                                   Tensor(1, {1, 2}, {3, 4})};
  const TensorPart whole = Tensor(0, {2, 2}, {1, 2, 3, 4}).part;
  EXPECT_THAT(Joined(rows, Alone(), &whole), HasSubstr("--split_batch"));
  LayoutFacts split;
  split.split_batch = true;
  EXPECT_EQ(Joined(rows, split, &whole), "[2, 2] 1 2 3 4");
  // Gradients that were not averaged yet are not parts of a batch.
  const TensorPart gradient = Tensor(0, {1, 2}, {2, 3}).part;
  EXPECT_THAT(Joined(rows, split, &gradient), HasSubstr("not parts"));
  // The values are equal on all ranks, so one is used.
  EXPECT_EQ(Joined({rows[0], Tensor(1, {1, 2}, {1, 2})}), "[1, 2] 1 2");
}

// Ranks 0 and 1 are a model, ranks 2 and 3 its replica with the other half of
// the batch: the batch is on dimension 0, the heads on dimension 1.
TEST(LayoutPlanTest, PartsOfAModelAndOfABatchTogether) {
  LayoutFacts facts;
  facts.model_groups = {{0, 0}, {1, 0}, {2, 2}, {3, 2}};
  facts.split_batch = true;
  const TensorPart whole = Tensor(0, {2, 2}, {1, 2, 3, 4}).part;
  EXPECT_EQ(Joined({Tensor(0, {1, 1}, {1}), Tensor(1, {1, 1}, {2}),
                    Tensor(2, {1, 1}, {3}), Tensor(3, {1, 1}, {4})},
                   facts, &whole),
            "[2, 2] 1 2 3 4");
  // Copies within a model add up to the batch as well, but are not parts of it.
  EXPECT_EQ(Joined({Tensor(0, {1, 2}, {1, 2}), Tensor(1, {1, 2}, {1, 2}),
                    Tensor(2, {1, 2}, {3, 4}), Tensor(3, {1, 2}, {3, 4})},
                   facts, &whole),
            "[2, 2] 1 2 3 4");
}

TEST(LayoutPlanTest, ARecordWithoutItsStridedShard) {
  JsonDocument record;
  ASSERT_TRUE(record
                  .Parse(R"({"type":"torch.distributed.tensor.DTensor",)"
                         R"("dtype":"torch.float32","shape":[2,3],"Max":1,)"
                         R"("Min":0,"Mean":0.5,"Norm":1.5,)"
                         R"("device_mesh":[[0,1],[2,3]],)"
                         R"("placements":[{"Shard":{"dim":0}}]})")
                  .ok());
  const auto part = ReadTensorPart(1, StatSet(), record.root());
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->mesh->shape, (std::vector<int64_t>{2, 2}));
  ASSERT_EQ(part->placements.size(), 2);
  EXPECT_EQ(part->placements[0].kind, Kind::kStridedShard);
  EXPECT_EQ(part->placements[1].kind, Kind::kShard);
  EXPECT_DOUBLE_EQ(part->stats[kNorm]->value, 1.5);
}

TEST(LayoutPlanTest, ShapesThatOverflowAreRefused) {
  const auto read = [](const std::string& shape) {
    JsonDocument record;
    EXPECT_TRUE(
        record
            .Parse(absl::StrCat(
                R"({"type":"x","dtype":"torch.float32","shape":)", shape, "}"))
            .ok());
    return ReadTensorPart(0, StatSet(), record.root()).status();
  };
  EXPECT_TRUE(read("[4096,4096,0]").ok());
  for (const char* const shape :
       {"[-1]", "[1.5]", "[1e300]", "[99999999999999]",
        "[99999999,99999999,99999999,0]", "[null]"}) {
    EXPECT_THAT(std::string(read(shape).message()), HasSubstr("bad shape"))
        << shape;
  }
}

TEST(LayoutPlanTest, BadMeshesAndPlacementsAreRefused) {
  const auto read = [](const std::string& mesh, const std::string& placements) {
    JsonDocument record;
    EXPECT_TRUE(record
                    .Parse(absl::StrCat(
                        R"({"type":"x","dtype":"torch.float32","shape":[2],)",
                        R"("device_mesh":)", mesh, R"(,"placements":)",
                        placements, "}"))
                    .ok());
    return std::string(
        ReadTensorPart(0, StatSet(), record.root()).status().message());
  };
  const std::string copy = R"([{"Replicate":{}}])";
  EXPECT_EQ(read("[0,1]", copy), "");
  for (const char* const mesh : {"[]", "[[]]", "[[0],[1,2]]", "[0,[1]]",
                                 "[0,0]", "[-1]", "\"0\"", "[0.5]", "{}"}) {
    EXPECT_THAT(read(mesh, copy), HasSubstr("mesh")) << mesh;
  }
  for (const char* const placement :
       {R"([{"Shard":{}}])", R"([{"Shard":{"dim":-1}}])", R"([{"Other":{}}])",
        R"([{"Partial":{}}])", "[1]"}) {
    EXPECT_THAT(read("[0,1]", placement), HasSubstr("placement")) << placement;
  }
}

}  // namespace
}  // namespace rankprobe::analysis
