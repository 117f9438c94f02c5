// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/strided_layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Dims = std::vector<int64_t>;

TensorView View(const std::vector<int32_t>& memory, const Dims& sizes,
                const Dims& strides, int64_t offset = 0) {
  return {memory.data() + offset, v1::DTYPE_INT32, sizes, strides};
}

std::vector<int32_t> Collect(const StridedLayout& layout) {
  std::vector<int32_t> out;
  ForEachBlock(layout, 4, [&](const char* data, size_t bytes) {
    const size_t old = out.size();
    out.resize(old + bytes / 4);
    std::memcpy(out.data() + old, data, bytes);
    return true;
  });
  return out;
}

// The elements one by one, as the definition of strides says.
std::vector<int32_t> Expected(const TensorView& view) {
  std::vector<int32_t> out;
  Dims index(view.sizes.size(), 0);
  const int64_t count = std::accumulate(view.sizes.begin(), view.sizes.end(),
                                        int64_t{1}, std::multiplies<>());
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * view.strides[d];
    out.push_back(static_cast<const int32_t*>(view.data)[at]);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < view.sizes[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

TEST(StridedLayoutTest, ReshapesAreOneDimension) {
  const std::vector<int32_t> memory(24);
  const StridedLayout layout =
      LayoutInOrder(View(memory, {2, 1, 3, 4}, {12, 99, 4, 1}));
  EXPECT_THAT(layout.sizes, ElementsAre(24));
  EXPECT_THAT(layout.strides, ElementsAre(1));
  EXPECT_TRUE(layout.contiguous());
  EXPECT_THAT(LayoutInOrder(View(memory, {1, 1}, {7, 7})).sizes, IsEmpty());
  EXPECT_THAT(LayoutInAnyOrder(View(memory, {1, 24}, {5, 1}), 4).sizes,
              ElementsAre(24));
  EXPECT_THAT(LayoutInAnyOrder(View(memory, {1, 1}, {7, 7}), 4).sizes,
              IsEmpty());
}

TEST(StridedLayoutTest, TransposesAreOneDimensionInAnyOrderOnly) {
  const std::vector<int32_t> memory(24);
  const Dims sizes = {4, 6}, strides = {1, 4};
  const TensorView transposed = View(memory, sizes, strides);
  EXPECT_THAT(LayoutInOrder(transposed).sizes, ElementsAre(4, 6));
  EXPECT_THAT(LayoutInAnyOrder(transposed, sizeof(int32_t)).sizes,
              ElementsAre(24));
}

TEST(StridedLayoutTest, ExpansionsCountOften) {
  const std::vector<int32_t> memory(6);
  const StridedLayout layout =
      LayoutInAnyOrder(View(memory, {5, 6, 2}, {0, 1, 0}), sizeof(int32_t));
  EXPECT_THAT(layout.sizes, ElementsAre(6));
  EXPECT_EQ(layout.repeat, 10);
  const StridedLayout scalar =
      LayoutInAnyOrder(View(memory, {5}, {0}), sizeof(int32_t));
  EXPECT_THAT(scalar.sizes, IsEmpty());
  EXPECT_EQ(scalar.repeat, 5);
  EXPECT_EQ(Collect(scalar).size(), 1);
}

// Sizes around the block of 8,192 elements and the direct rows of 256.
TEST(StridedLayoutTest, BlocksGiveTheElements) {
  std::vector<int32_t> memory(400000);
  std::iota(memory.begin(), memory.end(), 0);
  struct Case {
    Dims sizes, strides;
    int64_t offset = 0;
  };
  const std::vector<Case> cases = {
      {{}, {}},
      {{300000}, {1}},
      {{100}, {3}},
      {{20000}, {2}},
      {{9000}, {-1}, 8999},
      {{192, 768}, {1, 192}},
      {{768, 100}, {200, 1}},
      {{300, 257}, {1000, 1}},
      {{300, 256}, {1000, 1}},
      {{3, 5, 7, 2}, {1, 3, 15, 105}},
      {{3, 4, 5}, {0, 5, 1}},
      {{4, 9000}, {0, 2}},
      {{2, 4, 96, 48}, {96 * 576, 48, 576, 1}},
      {{2, 4, 48, 96}, {96 * 576, 48, 1, 576}},
      {{10001, 3}, {3, -1}, 2},
      {{2, 2, 2, 2, 2, 2, 2, 3}, {300, 100, 50, 25, 12, 6, 3, 1}},
  };
  for (const Case& c : cases) {
    const TensorView view = View(memory, c.sizes, c.strides, c.offset);
    const std::vector<int32_t> expected = Expected(view);
    EXPECT_EQ(Collect(LayoutInOrder(view)), expected)
        << ::testing::PrintToString(c.sizes);
    const StridedLayout any = LayoutInAnyOrder(view, sizeof(int32_t));
    std::vector<int32_t> repeated, sorted = expected;
    for (const int32_t v : Collect(any))
      repeated.insert(repeated.end(), static_cast<size_t>(any.repeat), v);
    std::sort(repeated.begin(), repeated.end());
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(repeated, sorted) << ::testing::PrintToString(c.sizes);
  }
}

TEST(StridedLayoutTest, BlocksButTheLastAreWholeWords) {
  const std::vector<char> memory(100000);
  const Dims sizes = {101, 333}, strides = {1, 300};
  const StridedLayout layout =
      LayoutInOrder({memory.data(), v1::DTYPE_INT8, sizes, strides});
  std::vector<size_t> blocks;
  ForEachBlock(layout, 1, [&](const char*, size_t bytes) {
    blocks.push_back(bytes);
    return true;
  });
  ASSERT_GT(blocks.size(), 1);
  EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), size_t{0}),
            101 * 333);
  blocks.pop_back();
  for (const size_t bytes : blocks) EXPECT_EQ(bytes % 8, 0);
}

TEST(StridedLayoutTest, StopsWhenTold) {
  const std::vector<int32_t> memory(100000);
  for (const int64_t stride : {1, 2}) {
    int calls = 0;
    ForEachBlock(LayoutInOrder(View(memory, {50000}, {stride})), 4,
                 [&](const char*, size_t) { return ++calls < 2; });
    EXPECT_EQ(calls, 2);
  }
}

}  // namespace
}  // namespace rankprobe
