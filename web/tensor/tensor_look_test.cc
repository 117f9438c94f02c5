// SPDX-License-Identifier: Apache-2.0
#include "web/tensor/tensor_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::string Bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void SetShape(std::initializer_list<int64_t> shape, v1::TensorPlace* place) {
  place->set_dtype(v1::DTYPE_FLOAT32);
  for (const int64_t length : shape) place->add_shape(length);
}

v1::TensorLookRequest Whole(std::initializer_list<int64_t> shape,
                            uint32_t bins) {
  v1::TensorLookRequest request;
  SetShape(shape, request.mutable_tensor());
  request.set_bins(bins);
  return request;
}

std::string WhyNot(const v1::TensorLookRequest& request,
                   const std::string& bytes) {
  return std::string(LookAtTensor(request, bytes, "").status().message());
}

TEST(TensorLookTest, NumbersAndHistogram) {
  const auto look = LookAtTensor(Whole({2, 4}, 2),
                                 Bytes({0, 1, 2, 3, kNan, kInf, -kInf, 4}), "");
  ASSERT_TRUE(look.ok()) << look.status();
  const v1::TensorNumbers& n = look->numbers();
  EXPECT_EQ(n.elements(), 8u);
  EXPECT_EQ(n.nan(), 1u);
  EXPECT_EQ(n.positive_infinite(), 1u);
  EXPECT_EQ(n.negative_infinite(), 1u);
  EXPECT_EQ(n.zeros(), 1u);
  EXPECT_EQ(n.max(), 4);
  EXPECT_EQ(n.min(), 0);
  EXPECT_EQ(n.mean(), 2);
  EXPECT_DOUBLE_EQ(n.standard_deviation(), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(n.norm(), std::sqrt(30.0));
  EXPECT_THAT(n.largest_at(), ElementsAre(1, 0)) << "the NaN";
  EXPECT_THAT(look->edges(), ElementsAre(0, 2, 4));
  EXPECT_THAT(look->counts(), ElementsAre(2, 3));
}

TEST(TensorLookTest, LogarithmsLeaveZerosOut) {
  v1::TensorLookRequest request = Whole({4}, 2);
  request.set_logarithmic(true);
  const auto look = LookAtTensor(request, Bytes({0, -1, 10, 100}), "");
  ASSERT_TRUE(look.ok());
  EXPECT_THAT(look->edges(), ElementsAre(0, 1, 2));
  EXPECT_THAT(look->counts(), ElementsAre(1, 2));
  // All numbers are equal: one bin.
  const auto same = LookAtTensor(Whole({3}, 8), Bytes({5, 5, 5}), "");
  EXPECT_THAT(same->counts(), ElementsAre(3));
  const auto none = LookAtTensor(Whole({2}, 8), Bytes({kNan, kInf}), "");
  EXPECT_THAT(none->counts(), IsEmpty());
  EXPECT_EQ(LookAtTensor(Whole({0, 3}, 8), "", "")->numbers().elements(), 0u);
}

TEST(TensorLookTest, AWindowOfASlice) {
  // [2, 3, 4]: 100 a + 10 b + c.
  std::vector<float> values;
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 4; ++c) values.push_back(100.f * a + 10.f * b + c);
    }
  }
  v1::TensorLookRequest request = Whole({2, 3, 4}, 0);
  request.set_row_dimension(1);
  request.set_column_dimension(2);
  for (const int64_t at : {1, 0, 0}) request.add_at(at);
  request.set_first_row(1);
  request.set_first_column(2);
  request.set_rows(100);
  request.set_columns(100);
  auto look = LookAtTensor(request, Bytes(values), "");
  ASSERT_TRUE(look.ok()) << look.status();
  EXPECT_EQ(look->rows_total(), 3);
  EXPECT_EQ(look->columns_total(), 4);
  EXPECT_EQ(look->rows(), 2u);
  EXPECT_EQ(look->columns(), 2u);
  EXPECT_THAT(look->cells(), ElementsAre(112, 113, 122, 123));
  // Transposed, every second row and third column.
  request.set_row_dimension(2);
  request.set_column_dimension(0);
  request.set_at(1, 2);
  request.set_first_row(0);
  request.set_first_column(0);
  request.set_row_step(3);
  request.set_column_step(1);
  look = LookAtTensor(request, Bytes(values), "");
  ASSERT_TRUE(look.ok()) << look.status();
  EXPECT_THAT(look->cells(), ElementsAre(22, 122, 23, 123));
}

TEST(TensorLookTest, ACellShowsWhatStandsOutInIt) {
  v1::TensorLookRequest request = Whole({1, 6}, 0);
  request.set_row_dimension(0);
  request.set_column_dimension(1);
  request.add_at(0);
  request.add_at(0);
  request.set_rows(1);
  request.set_columns(10);
  request.set_column_step(2);
  const auto look =
      LookAtTensor(request, Bytes({1, -7, kInf, 2, kInf, kNan}), "");
  ASSERT_TRUE(look.ok()) << look.status();
  ASSERT_EQ(look->cells_size(), 3);
  EXPECT_EQ(look->cells(0), -7);
  EXPECT_EQ(look->cells(1), kInf);
  EXPECT_TRUE(std::isnan(look->cells(2)));
}

TEST(TensorLookTest, ADifferenceOfTwo) {
  v1::TensorLookRequest request = Whole({4}, 4);
  SetShape({4}, request.mutable_minus());
  const auto look = LookAtTensor(request, Bytes({1, kNan, kInf, 5}),
                                 Bytes({1, kNan, kInf, 2}));
  ASSERT_TRUE(look.ok());
  EXPECT_EQ(look->numbers().nan(), 0u);
  EXPECT_EQ(look->numbers().zeros(), 3u);
  EXPECT_EQ(look->numbers().max(), 3);
  EXPECT_THAT(look->numbers().largest_at(), ElementsAre(3));
  SetShape({1}, request.mutable_minus());
  EXPECT_THAT(std::string(LookAtTensor(request, Bytes({1, 2, 3, 4}),
                                       Bytes({1, 2, 3, 4}))
                              .status()
                              .message()),
              HasSubstr("other shapes"));
}

TEST(TensorLookTest, StrangeRequestsAreRefused) {
  const std::string four = Bytes({1, 2, 3, 4});
  EXPECT_THAT(WhyNot(Whole({5}, 2), four), HasSubstr("16 bytes"));
  EXPECT_THAT(WhyNot(Whole({-1}, 2), four), HasSubstr("negative"));
  EXPECT_THAT(WhyNot(Whole({int64_t{1} << 62, 8}, 2), four),
              HasSubstr("too large"));
  EXPECT_THAT(WhyNot(Whole({4}, 1), four), HasSubstr("bins"));
  EXPECT_THAT(WhyNot(Whole({4}, 257), four), HasSubstr("bins"));
  v1::TensorLookRequest no_type = Whole({4}, 2);
  no_type.mutable_tensor()->set_dtype(v1::DTYPE_UNSPECIFIED);
  EXPECT_THAT(WhyNot(no_type, four), HasSubstr("without numbers"));
  v1::TensorLookRequest window = Whole({2, 2}, 0);
  window.set_rows(1);
  window.set_columns(1);
  EXPECT_THAT(WhyNot(window, four), HasSubstr("an index a dimension"));
  window.add_at(0);
  window.add_at(7);
  EXPECT_THAT(WhyNot(window, four), HasSubstr("no such dimensions"));
  window.set_column_dimension(-1);
  EXPECT_THAT(WhyNot(window, four), HasSubstr("has no index 7"));
  window.set_column_dimension(2);
  EXPECT_THAT(WhyNot(window, four), HasSubstr("no such dimensions"));
  window.set_column_dimension(1);
  window.set_rows(257);
  EXPECT_THAT(WhyNot(window, four), HasSubstr("256"));
  window.set_rows(1);
  window.set_first_row(-1);
  EXPECT_THAT(WhyNot(window, four), HasSubstr("256"));
  window.set_first_row(100);
  const auto beyond = LookAtTensor(window, four, "");
  ASSERT_TRUE(beyond.ok());
  EXPECT_EQ(beyond->rows(), 0u);
  window.set_first_row(0);
  window.set_row_step(0xFFFFFFFF);
  EXPECT_TRUE(LookAtTensor(window, four, "").ok());
}

}  // namespace
}  // namespace rankprobe
