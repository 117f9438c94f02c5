// SPDX-License-Identifier: Apache-2.0
// Metrics of two tensors.
#include "analysis/compare/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "dump_format/testing/pt_files.h"

namespace rankprobe::analysis {
namespace {

using State = TensorMetrics::State;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;

class MetricsTest : public ::testing::Test {
 protected:
  template <typename T>
  PtTensor Make(v1::DType dtype, const std::vector<int64_t>& shape,
                const std::vector<T>& values) {
    return files_.Make(dtype, shape, values);
  }
  TensorMetrics Metrics(const PtTensor& n, const PtTensor& b) {
    auto metrics = CompareTensors(n, b);
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    return *metrics;
  }

  // The texts in the tables.
  static std::vector<std::string> Texts(const TensorMetrics& metrics) {
    std::vector<std::string> out;
    for (size_t i = 0; i < kTensorMetricCount; ++i) {
      out.push_back(FormatMetric(metrics, i));
    }
    return out;
  }

  rankprobe::testing::PtFiles files_;
};

TEST_F(MetricsTest, OfFourElements) {
  const PtTensor b = Make<float>(v1::DTYPE_FLOAT32, {4}, {1, 2, 3, 4});
  const TensorMetrics same = Metrics(b, b);
  EXPECT_THAT(Texts(same),
              ElementsAre("1.0", "0.0", "0.0", "0.0", "1.0", "1.0"));
  const TensorMetrics off =
      Metrics(Make<float>(v1::DTYPE_FLOAT32, {4}, {1, 2, 3, 5}), b);
  EXPECT_EQ(off.values[kEuclideanDistance], 1.0);
  EXPECT_EQ(off.values[kMaxAbsoluteError], 1.0);
  EXPECT_EQ(off.values[kMaxRelativeError], 0.25);
  EXPECT_EQ(off.values[kBelowOneThousandth], 0.75);
}

TEST_F(MetricsTest, OddTensors) {
  const float nan = NAN;
  const PtTensor b = Make<float>(v1::DTYPE_FLOAT32, {3}, {1, nan, INFINITY});
  EXPECT_EQ(Texts(Metrics(b, b))[kMaxAbsoluteError], "0.0");
  const auto check_none = [&](const PtTensor& n, State state,
                              const char* word) {
    const TensorMetrics none = Metrics(n, b);
    EXPECT_EQ(none.state, state);
    EXPECT_THAT(none.values, Each(Eq(std::nullopt)));
    EXPECT_THAT(Texts(none), Each(word));
  };
  check_none(Make<float>(v1::DTYPE_FLOAT32, {3}, {1, 2, INFINITY}),
             State::kSpecialsDiffer, "N/A");
  check_none(Make<float>(v1::DTYPE_FLOAT32, {3}, {1, nan, -INFINITY}),
             State::kSpecialsDiffer, "N/A");
  check_none(Make<float>(v1::DTYPE_FLOAT32, {2, 2}, {1, 2, 3, 4}),
             State::kShapeMismatch, "shape unmatched");
  check_none(Make<float>(v1::DTYPE_FLOAT32, {0}, {}), State::kUnsupported,
             "unsupported");
  EXPECT_THAT(Texts(TensorMetrics()), Each(""));
  // With one element only the two errors are defined. Shapes are compared
  // squeezed.
  const TensorMetrics one = Metrics(Make<float>(v1::DTYPE_FLOAT32, {1, 1}, {3}),
                                    Make<float>(v1::DTYPE_FLOAT32, {}, {2}));
  EXPECT_THAT(Texts(one), ElementsAre("unsupported", "unsupported", "1.0",
                                      "0.5", "unsupported", "unsupported"));
  const PtTensor zero = Make<float>(v1::DTYPE_FLOAT32, {2}, {0, 0});
  EXPECT_EQ(Texts(Metrics(zero, zero))[kCosine], "1.0");
  const TensorMetrics undefined =
      Metrics(zero, Make<float>(v1::DTYPE_FLOAT32, {2}, {0, 1}));
  EXPECT_EQ(Texts(undefined)[kCosine], "Nan");
  EXPECT_EQ(undefined.Finite(kCosine), std::nullopt);
  EXPECT_EQ(undefined.Finite(kMaxAbsoluteError), 1);
}

// Several shares of a tensor on several threads, compared with one plain loop.
TEST_F(MetricsTest, LargeTensors) {
  constexpr int64_t kElements = (2 << 20) + 12345;
  std::vector<float> n(kElements);
  std::vector<float> b(kElements);
  double distance = 0;
  double most = 0;
  int64_t close = 0;
  for (size_t i = 0; i < n.size(); ++i) {
    b[i] = static_cast<float>(i % 1000) + 1;
    n[i] = b[i] * (1 + 1e-5F * static_cast<float>(i % 211));
    if (i % 100'003 == 7) n[i] = b[i] = i % 2 == 0 ? NAN : -INFINITY;
    const double difference = std::isfinite(n[i]) ? n[i] - b[i] : 0;
    distance += difference * difference;
    most = std::max(most, std::fabs(difference));
    close += !std::isfinite(n[i]) || std::fabs(n[i] - b[i]) / b[i] < 0.001F;
  }
  const std::vector<int64_t> shape = {kElements};
  const PtTensor target = Make<float>(v1::DTYPE_FLOAT32, shape, n);
  const PtTensor reference = Make<float>(v1::DTYPE_FLOAT32, shape, b);
  const TensorMetrics floats = Metrics(target, reference);
  EXPECT_NEAR(*floats.values[kEuclideanDistance], std::sqrt(distance),
              1e-9 * distance);
  EXPECT_NEAR(*floats.values[kMaxAbsoluteError], most, 1e-12);
  EXPECT_NEAR(*floats.values[kBelowOneThousandth],
              static_cast<double>(close) / kElements, 1e-12);
  EXPECT_EQ(floats.values, Metrics(target, reference).values);
  // The same numbers as doubles: only relative errors are rounded differently.
  const TensorMetrics doubles =
      Metrics(Make<double>(v1::DTYPE_FLOAT64, shape, {n.begin(), n.end()}),
              Make<double>(v1::DTYPE_FLOAT64, shape, {b.begin(), b.end()}));
  EXPECT_EQ(doubles.values[kEuclideanDistance],
            floats.values[kEuclideanDistance]);
  EXPECT_EQ(doubles.values[kMaxAbsoluteError],
            floats.values[kMaxAbsoluteError]);
  EXPECT_NEAR(*doubles.values[kMaxRelativeError],
              *floats.values[kMaxRelativeError], 1e-6);
  // A non-finite value at the last position of one side is found.
  n.back() = NAN;
  EXPECT_EQ(Metrics(Make<float>(v1::DTYPE_FLOAT32, shape, n), reference).state,
            State::kSpecialsDiffer);
}

}  // namespace
}  // namespace rankprobe::analysis
