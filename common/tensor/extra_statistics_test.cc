// SPDX-License-Identifier: Apache-2.0
// Requested statistics besides Max, Min, Mean and Norm, compared with a plain
// loop over the elements.
#include "common/tensor/extra_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/tensor/dtype.h"
#include "common/tensor/summary.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ExtraSet Asked(absl::Span<const absl::string_view> words) {
  ExtraSet set;
  for (const absl::string_view word : words) EXPECT_TRUE(set.AddWord(word));
  return set;
}

std::vector<ExtraValue> Extra(const TensorView& view, ExtraSet wanted,
                              Precision precision = Precision::kLow) {
  SummaryRequest request;
  request.extra = wanted;
  request.precision = precision;
  return Summarize(view, request).extra;
}

template <typename T>
std::vector<ExtraValue> ExtraOf(v1::DType dtype, const std::vector<T>& values,
                                ExtraSet wanted,
                                Precision precision = Precision::kLow) {
  const auto size =
      static_cast<int64_t>(values.size() * sizeof(T) / ElementSize(dtype));
  const int64_t stride = 1;
  return Extra({values.data(), dtype, {&size, 1}, {&stride, 1}}, wanted,
               precision);
}

std::vector<int64_t> Ints(const std::vector<ExtraValue>& values) {
  std::vector<int64_t> out;
  for (const ExtraValue& value : values) {
    EXPECT_EQ(value.value.kind, StatValue::Kind::kInt);
    out.push_back(value.value.i);
  }
  return out;
}

TEST(ExtraSetTest, WordsAskForStatistics) {
  ExtraSet set;
  EXPECT_TRUE(set.empty());
  EXPECT_FALSE(set.AddWord("nan"));
  EXPECT_FALSE(set.AddWord(""));
  EXPECT_TRUE(set.empty());
  EXPECT_TRUE(set.AddWord("counts"));
  EXPECT_TRUE(set.AddWord("counts"));
  EXPECT_THAT(set.Words(), ElementsAre("counts"));
  EXPECT_THAT(ExtraStatisticWords(), ElementsAre("counts", "std"));
  EXPECT_THAT(set.Ids(), ElementsAre(v1::STATISTIC_ID_NAN_COUNT,
                                     v1::STATISTIC_ID_INF_COUNT,
                                     v1::STATISTIC_ID_ZERO_COUNT));
}

TEST(ExtraStatisticsTest, NothingIsMadeThatNobodyAskedFor) {
  EXPECT_THAT(ExtraOf<float>(v1::DTYPE_FLOAT32, {1, 2}, ExtraSet()), IsEmpty());
}

TEST(ExtraStatisticsTest, CountsOfEachFamily) {
  const ExtraSet counts = Asked({"counts"});
  constexpr auto kF = std::numeric_limits<float>::infinity();
  constexpr auto kN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(
      Ints(ExtraOf<float>(v1::DTYPE_FLOAT32,
                          {kN, -kN, kF, -kF, kF, 0, -0.0F, 1, 1e-45F}, counts)),
      ElementsAre(2, 3, 2));
  EXPECT_THAT(Ints(ExtraOf<double>(v1::DTYPE_FLOAT64,
                                   {kNan, kInf, 0, 5e-324, 1}, counts)),
              ElementsAre(1, 1, 1));
  // Smallest denormal, zeros, infinity, NaN.
  EXPECT_THAT(Ints(ExtraOf<uint16_t>(
                  v1::DTYPE_FLOAT16,
                  {1, 0, 0x8000, 0x7c00, 0xfc00, 0x7c01, 0xffff}, counts)),
              ElementsAre(2, 2, 2));
  EXPECT_THAT(Ints(ExtraOf<uint16_t>(
                  v1::DTYPE_BFLOAT16,
                  {1, 0, 0x8000, 0x7f80, 0xff80, 0x7f81, 0xffff}, counts)),
              ElementsAre(2, 2, 2));
  EXPECT_THAT(Ints(ExtraOf<int8_t>(v1::DTYPE_INT8, {0, -128, 0, 1}, counts)),
              ElementsAre(0, 0, 2));
  EXPECT_THAT(
      Ints(ExtraOf<uint64_t>(v1::DTYPE_UINT64,
                             {0, ~uint64_t{0}, uint64_t{1} << 63}, counts)),
      ElementsAre(0, 0, 1));
  EXPECT_THAT(Ints(ExtraOf<uint8_t>(v1::DTYPE_BOOL, {0, 1, 0, 0}, counts)),
              ElementsAre(0, 0, 3));
  // NaN or infinite in either part; a number that is both counts as both.
  EXPECT_THAT(
      Ints(ExtraOf<float>(v1::DTYPE_COMPLEX64,
                          {kN, 0, 0, kN, kF, kN, 0, -kF, 0, 0, 0, 1}, counts)),
      ElementsAre(3, 2, 1));
}

TEST(ExtraStatisticsTest, NullWhereThereIsNothingToReduce) {
  const ExtraSet counts = Asked({"counts"});
  EXPECT_THAT(ExtraOf<float>(v1::DTYPE_FLOAT32, {}, counts), IsEmpty());
  // A dtype without statistics, and a tensor without memory.
  EXPECT_THAT(ExtraOf<uint16_t>(v1::DTYPE_COMPLEX32, {0, 1}, counts),
              IsEmpty());
  const int64_t two = 2, one = 1;
  EXPECT_THAT(Extra({nullptr, v1::DTYPE_FLOAT32, {&two, 1}, {&one, 1}}, counts),
              IsEmpty());
}

TEST(ExtraStatisticsTest, ZeroDimensionalTensorsHaveTheirOwn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Ints(Extra({&nan, v1::DTYPE_FLOAT32, {}, {}}, Asked({"counts"}))),
              ElementsAre(1, 0, 0));
}

// Around the borders of pieces and blocks, also through strides, and with
// elements that count several times.
TEST(ExtraStatisticsTest, CountsOfViewsAreThoseOfTheirElements) {
  const ExtraSet counts = Asked({"counts"});
  std::mt19937 random(3);
  std::vector<float> data(200000);
  for (float& v : data) {
    const auto kind = random() % 8;
    v = kind == 0   ? 0
        : kind == 1 ? std::numeric_limits<float>::quiet_NaN()
        : kind == 2 ? std::numeric_limits<float>::infinity()
                    : static_cast<float>(kind);
  }
  const auto plain = [&](int64_t rows, int64_t columns, int64_t row_stride,
                         int64_t column_stride) {
    std::vector<int64_t> out(3);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float v =
            data[static_cast<size_t>(r * row_stride + c * column_stride)];
        out[0] += std::isnan(v);
        out[1] += std::isinf(v);
        out[2] += v == 0;
      }
    }
    return out;
  };
  struct Case {
    int64_t rows, columns, row_stride, column_stride;
  };
  for (const Case& one :
       {Case{1, 1, 1, 1}, Case{1, 511, 511, 1}, Case{1, 512, 512, 1},
        Case{1, 513, 513, 1}, Case{1, 200000, 200000, 1},
        Case{300, 400, 500, 1}, Case{400, 300, 1, 500}, Case{77, 1000, 1, 0},
        Case{90, 111, 1000, 7}}) {
    const int64_t sizes[] = {one.rows, one.columns};
    const int64_t strides[] = {one.row_stride, one.column_stride};
    const TensorView view{data.data(), v1::DTYPE_FLOAT32, sizes, strides};
    EXPECT_EQ(Ints(Extra(view, counts)),
              plain(one.rows, one.columns, one.row_stride, one.column_stride))
        << one.rows << "x" << one.columns;
    // The same with a checksum, which requires the elements in order.
    SummaryRequest request;
    request.extra = counts;
    request.checksum = ChecksumMode::kCrc32;
    EXPECT_EQ(Ints(Summarize(view, request).extra),
              plain(one.rows, one.columns, one.row_stride, one.column_stride));
  }
}

double Std(const std::vector<ExtraValue>& values) {
  EXPECT_EQ(values.size(), 1);
  EXPECT_EQ(values[0].id, v1::STATISTIC_ID_STD);
  EXPECT_EQ(values[0].value.kind, StatValue::Kind::kFloat);
  return values[0].value.f;
}

TEST(ExtraStatisticsTest, StdIsThatOfThePopulation) {
  const ExtraSet std = Asked({"std"});
  // The worked example of many textbooks: 2, and 2.138 of a sample.
  EXPECT_EQ(
      Std(ExtraOf<float>(v1::DTYPE_FLOAT32, {2, 4, 4, 4, 5, 5, 7, 9}, std)), 2);
  EXPECT_EQ(
      Std(ExtraOf<int64_t>(v1::DTYPE_INT64, {2, 4, 4, 4, 5, 5, 7, 9}, std)), 2);
  EXPECT_EQ(Std(ExtraOf<uint8_t>(v1::DTYPE_BOOL, {0, 1, 1, 0}, std)), 0.5);
  // 3 + 4i and its opposite: five from their mean.
  EXPECT_EQ(Std(ExtraOf<float>(v1::DTYPE_COMPLEX64, {3, 4, -3, -4}, std)), 5);
  EXPECT_EQ(Std(ExtraOf<float>(v1::DTYPE_FLOAT32, {7}, std)), 0);
  // As Mean: in the tensor's own type, float32 at high precision. 1/3.
  const std::vector<uint16_t> halves = {0, 0, 0, 0, 0, 0, 0, 0, 0x3c00};
  EXPECT_EQ(Std(ExtraOf(v1::DTYPE_FLOAT16, halves, std)), 0.314208984375);
  EXPECT_EQ(Std(ExtraOf(v1::DTYPE_FLOAT16, halves, std, Precision::kHigh)),
            static_cast<float>(std::sqrt(8.0) / 9));
  for (const double special : {kNan, kInf, -kInf}) {
    EXPECT_TRUE(std::isnan(
        Std(ExtraOf<double>(v1::DTYPE_FLOAT64, {1, special, 2}, std))));
    EXPECT_TRUE(
        std::isnan(Std(ExtraOf<double>(v1::DTYPE_FLOAT64, {special}, std))));
  }
}

// Where the difference of the mean square and the squared mean has no digit
// left: far from zero, and after an element far from the others.
TEST(ExtraStatisticsTest, StdLosesNoDigitsFarFromZero) {
  const ExtraSet std = Asked({"std"});
  for (const double offset : {0.0, 1e6, 1e12, -1e15}) {
    std::vector<double> values(100001);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = offset + static_cast<double>(i % 2);
    const double ones = 50000, count = 100001;
    const double p = ones / count;
    EXPECT_NEAR(Std(ExtraOf(v1::DTYPE_FLOAT64, values, std)),
                std::sqrt(p * (1 - p)), 1e-9)
        << offset;
  }
  EXPECT_EQ(
      Std(ExtraOf(v1::DTYPE_FLOAT32, std::vector<float>(70001, 0.1F), std)), 0);
  EXPECT_EQ(
      Std(ExtraOf(v1::DTYPE_FLOAT64, std::vector<double>(70001, 0.1), std)), 0);
  EXPECT_EQ(Std(ExtraOf<double>(v1::DTYPE_FLOAT64, {1e200, 1e200}, std)), 0);
  std::vector<double> outlier(5000);
  for (size_t i = 0; i < outlier.size(); ++i)
    outlier[i] = static_cast<double>(i % 2);
  outlier[0] = 1e9;
  double mean = 0, variance = 0;
  for (const double v : outlier) mean += v / 5000;
  for (const double v : outlier) variance += (v - mean) * (v - mean) / 5000;
  EXPECT_NEAR(Std(ExtraOf(v1::DTYPE_FLOAT64, outlier, std)),
              std::sqrt(variance), 1e-9 * std::sqrt(variance));
}

TEST(ExtraStatisticsTest, StdOfViewsIsThatOfTheirElements) {
  const ExtraSet std = Asked({"std"});
  std::mt19937 random(4);
  std::normal_distribution<float> normal(100, 3);
  std::vector<float> data(60000);
  for (float& v : data) v = normal(random);
  for (const auto& [rows, columns, row_stride, column_stride] :
       {std::array<int64_t, 4>{1, 511, 511, 1},
        {1, 60000, 60000, 1},
        {200, 150, 300, 1},
        {150, 200, 1, 300},
        {40, 1500, 1, 0},
        {90, 111, 600, 5}}) {
    const int64_t sizes[] = {rows, columns};
    const int64_t strides[] = {row_stride, column_stride};
    double mean = 0, variance = 0;
    const double count = static_cast<double>(rows * columns);
    for (const bool second : {false, true}) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const double v =
              data[static_cast<size_t>(r * row_stride + c * column_stride)];
          (second ? variance : mean) +=
              second ? (v - mean) * (v - mean) / count : v / count;
        }
      }
    }
    const double got =
        Std(Extra({data.data(), v1::DTYPE_FLOAT32, sizes, strides}, std));
    EXPECT_NEAR(got, std::sqrt(variance), 1e-6 * std::sqrt(variance))
        << rows << "x" << columns;
  }
}

// Requested statistics do not change the others.
TEST(ExtraStatisticsTest, TheOthersStayAsTheyAre) {
  std::vector<float> data(5000);
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = std::sin(static_cast<float>(i)) * 3;
  const int64_t size = 5000, stride = 1;
  const TensorView view{
      data.data(), v1::DTYPE_FLOAT32, {&size, 1}, {&stride, 1}};
  SummaryRequest request;
  request.checksum = ChecksumMode::kCrc32;
  request.digest = true;
  const Summary without = Summarize(view, request);
  for (const absl::string_view word : ExtraStatisticWords())
    EXPECT_TRUE(request.extra.AddWord(word));
  const Summary with = Summarize(view, request);
  EXPECT_EQ(with.crc32, without.crc32);
  EXPECT_EQ(with.digest, without.digest);
  EXPECT_EQ(with.statistics.max.f, without.statistics.max.f);
  EXPECT_EQ(with.statistics.norm.f, without.statistics.norm.f);
  EXPECT_EQ(with.statistics.mean.f, without.statistics.mean.f);
  EXPECT_EQ(with.extra.size(), request.extra.Ids().size());
}

TEST(ExtraStatisticsTest, InstructionSetsAgree) {
  size_t tables = 0;
  const kernels::Table* const* const usable = kernels::UsableTables(&tables);
  std::mt19937_64 random(5);
  std::vector<uint64_t> bits(kernels::kPiece);
  for (uint64_t& word : bits) word = random();
  for (int number = 0; number <= static_cast<int>(kernels::Number::kBool);
       ++number) {
    for (const size_t count :
         {size_t{1}, size_t{15}, size_t{33}, bits.size()}) {
      std::vector<double> expected(count), got(count);
      const auto which = static_cast<kernels::Number>(number);
      kernels::kBaselineTable.widen(which, bits.data(), count, expected.data());
      kernels::ElementCounts counts;
      kernels::kBaselineTable.counts({expected.data(), nullptr, count},
                                     &counts);
      for (size_t t = 0; t < tables; ++t) {
        usable[t]->widen(which, bits.data(), count, got.data());
        for (size_t i = 0; i < count; ++i) {
          // The bits of a NaN may differ.
          EXPECT_TRUE(got[i] == expected[i] ||
                      (std::isnan(got[i]) && std::isnan(expected[i])))
              << usable[t]->name << " " << number;
        }
        kernels::ElementCounts others;
        usable[t]->counts({got.data(), nullptr, count}, &others);
        EXPECT_EQ(others.nan, counts.nan);
        EXPECT_EQ(others.inf, counts.inf);
        EXPECT_EQ(others.zero, counts.zero);
        if (!std::isfinite(expected[0]) || counts.nan + counts.inf > 0)
          continue;
        kernels::Moments of_table, of_baseline;
        usable[t]->moments(expected.data(), count, &of_table);
        kernels::kBaselineTable.moments(expected.data(), count, &of_baseline);
        if (std::isinf(of_baseline.distances)) {  // squares beyond doubles
          EXPECT_EQ(of_table.distances, of_baseline.distances);
          continue;
        }
        EXPECT_NEAR(of_table.mean, of_baseline.mean,
                    1e-12 * std::fabs(of_baseline.mean));
        EXPECT_NEAR(of_table.distances, of_baseline.distances,
                    1e-12 * of_baseline.distances);
      }
    }
  }
}

}  // namespace
}  // namespace rankprobe
