// SPDX-License-Identifier: Apache-2.0
// Distance of two rows, and the difference that rounding allows.
#include "analysis/root_cause/row_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class RowDifferenceTest : public ::testing::Test {
 protected:
  // Compares rows with the given statistics and other fields.
  std::optional<double> Difference(const std::string& target,
                                   const std::string& reference,
                                   const TensorMetrics& metrics = {}) {
    StatSet all;
    for (size_t i = kUsualStatCount; i < kStatCount; ++i) all.Add(i);
    const auto row = [all](const std::string& fields, JsonDocument* document) {
      EXPECT_TRUE(
          document
              ->Parse(absl::StrCat(
                  R"({"output":[{"type":"torch.Tensor","dtype":"torch.int64",)",
                  R"("shape":[2],)", fields, "}]}"))
              .ok());
      std::vector<DumpRow> rows;
      EXPECT_TRUE(ReadRows("x", all, document, &rows).ok());
      return rows[0];
    };
    JsonDocument documents[2];
    const DumpRow n = row(target, &documents[0]);
    const DumpRow b = row(reference, &documents[1]);
    RowPair pair;
    pair.target = &n;
    pair.reference = &b;
    pair.tensor = metrics;
    return RowDifference(pair, DumpMode::kTensor);
  }
};

TEST_F(RowDifferenceTest, OfStatisticsAndChecksums) {
  const std::string one = R"("Max":4,"Min":1,"Mean":2,"Norm":5)";
  EXPECT_EQ(Difference(one, one), 0);
  // Min is relative to the largest of all, the norm to itself.
  EXPECT_EQ(Difference(one, R"("Max":4,"Min":2,"Mean":2,"Norm":5)"), 0.25);
  EXPECT_EQ(Difference(one, R"("Max":4,"Min":1,"Mean":2,"Norm":10)"), 0.5);
  EXPECT_EQ(Difference(one, R"("Max":NaN,"Min":1,"Mean":2,"Norm":5)"), kInf);
  EXPECT_EQ(Difference(R"("Max":null,"md5":"a")", R"("Max":null,"md5":"a")"),
            0);
  // Equal statistics of different data are not equal; a null is no evidence.
  EXPECT_GT(Difference(one + R"(,"md5":"a")", one + R"(,"md5":"b")"), 0);
  EXPECT_EQ(Difference(one + R"(,"md5":null)", one + R"(,"md5":null)"), 0);
  EXPECT_EQ(Difference(R"("Max":null,"md5":null)", R"("Max":null,"md5":null)"),
            std::nullopt);
}

TEST_F(RowDifferenceTest, OfExtraStatistics) {
  const std::string one = R"("Max":4,"Min":-4,"Mean":2,"Norm":5)";
  const auto with = [&](const char* more) { return absl::StrCat(one, more); };
  // One more NaN makes another tensor; one more zero may be rounding.
  EXPECT_EQ(Difference(with(R"(,"NanCount":1)"), with(R"(,"NanCount":2)")),
            kInf);
  EXPECT_EQ(Difference(with(R"(,"InfCount":0)"), with(R"(,"InfCount":2)")),
            kInf);
  EXPECT_EQ(Difference(with(R"(,"ZeroCount":1)"), with(R"(,"ZeroCount":2)")),
            0);
  EXPECT_EQ(Difference(with(R"(,"NanCount":1)"), with(R"(,"NanCount":1)")), 0);
  // One dump did not record it.
  EXPECT_EQ(Difference(with(R"(,"NanCount":1)"), one), 0);
}

TEST_F(RowDifferenceTest, OfElements) {
  const std::string one = R"("Max":4,"Min":1,"Mean":2,"Norm":5)";
  TensorMetrics metrics;
  metrics.state = TensorMetrics::State::kCompared;
  metrics.values[kEuclideanDistance] = 1;
  EXPECT_EQ(Difference(one, one, metrics), 0.2);
  EXPECT_EQ(Difference(
                one, one,
                NoMetrics(TensorMetrics::State::kUnsupported, "No real data.")),
            0);
  for (const auto state : {TensorMetrics::State::kSpecialsDiffer,
                           TensorMetrics::State::kShapeMismatch}) {
    EXPECT_EQ(Difference(one, one, NoMetrics(state, "")), kInf);
  }
}

TEST_F(RowDifferenceTest, OfElementsThatHaveNoNorm) {
  // Indices in another order: the largest possible norm of two of them is 5
  // sqrt(2).
  const std::string indices = R"("Max":5,"Min":-3,"Mean":null,"Norm":null)";
  TensorMetrics metrics;
  metrics.state = TensorMetrics::State::kCompared;
  metrics.values[kEuclideanDistance] = std::sqrt(2.0);
  EXPECT_NEAR(*Difference(indices, indices, metrics), 0.2, 1e-12);
  metrics.values[kEuclideanDistance] = 0;
  EXPECT_EQ(Difference(indices, indices, metrics), 0);
}

TEST(AutoToleranceTest, FollowsDtypeAndSumLength) {
  const auto row = [](JsonDocument* document, const std::string& dtype,
                      const std::string& shape) {
    EXPECT_TRUE(document
                    ->Parse(absl::StrCat(
                        R"({"output":[{"type":"torch.Tensor",)", R"("dtype":")",
                        dtype, R"(","shape":[)", shape, "]}]}"))
                    .ok());
    std::vector<DumpRow> rows;
    EXPECT_TRUE(ReadRows("x", StatSet(), document, &rows).ok());
    return rows[0];
  };
  JsonDocument a;
  JsonDocument b;
  JsonDocument c;
  const DumpRow out = row(&a, "torch.float32", "8,16");
  const DumpRow left = row(&b, "torch.float32", "8,100");
  const DumpRow right = row(&c, "torch.float32", "100,16");
  const double product = AutoTolerance(out, {&left, &right});
  EXPECT_NEAR(product / AutoTolerance(out, {&out}), 10, 1e-9);
  JsonDocument d;
  const DumpRow half = row(&d, "torch.bfloat16", "8,16");
  EXPECT_GT(AutoTolerance(half, {&half}), 1e-3);
  JsonDocument e;
  const DumpRow integers = row(&e, "torch.int64", "8,16");
  EXPECT_EQ(AutoTolerance(integers, {&integers}), 0);
  // The gradient of all experts' weights: each is a sum over its own tokens.
  JsonDocument f;
  DumpRow experts = row(&f, "torch.float32", "100,100,16");
  const double one = AutoTolerance(experts, {&left, &left});
  experts.state = RowState::kParametersGrad;
  EXPECT_NEAR(AutoTolerance(experts, {&left, &left}) / one, 2, 1e-9);
  // Between two programs the weight may be missing: the length is the width of
  // the inputs, and narrow types are accumulated in float32.
  JsonDocument g;
  const DumpRow wide = row(&g, "torch.bfloat16", "8,10000");
  const double float32 = 8 * std::ldexp(1.0, -24);
  const double bfloat16 = 8 * std::ldexp(1.0, -8);
  EXPECT_NEAR(TwoProgramTolerance(out, {&left}), float32 * 11, 1e-12);
  EXPECT_NEAR(TwoProgramTolerance(half, {&wide}), bfloat16 + float32 * 100,
              1e-12);
  EXPECT_EQ(TwoProgramTolerance(integers, {&integers}), 0);
  DumpRow weight = wide;
  weight.state = RowState::kParameters;
  EXPECT_EQ(TwoProgramTolerance(weight, {}), std::ldexp(1.0, -8));
  DumpRow bias = out;
  bias.state = RowState::kParameters;
  EXPECT_EQ(TwoProgramTolerance(bias, {&left}), std::ldexp(1.0, -24));
  EXPECT_EQ(TwoProgramTolerance(bias, {&half}), std::ldexp(1.0, -8))
      << "rounded to bfloat16 first";
}

}  // namespace
}  // namespace rankprobe::analysis
