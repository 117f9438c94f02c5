// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/device/device_statistics.h"

#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "agent/runtime/device/statistics_kernel.h"
#include "agent/runtime/device/statistics_kernel_ptx.h"
#include "common/tensor/dtype.h"
#include "common/tensor/summary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

// The library that simulates a GPU (testing/fake_cuda.cc).
struct Fake {
  template <typename F>
  static F* Find(const char* name) {
    static void* const handle =
        dlopen(RANKPROBE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<F*>(dlsym(handle, name));
  }
  static void Reset() { Find<void()>("fake_cuda_reset")(); }
  static void Fail(const char* name, int result) {
    Find<void(const char*, int)>("fake_cuda_fail")(name, result);
  }
  static void Capture(uintptr_t stream) {
    Find<void(uintptr_t)>("fake_cuda_capture")(stream);
  }
  static int Count(const char* name) {
    return Find<int(const char*)>("fake_cuda_count")(name);
  }
};

class DeviceStatisticsTest : public ::testing::Test {
 protected:
  DeviceStatisticsTest() { Fake::Reset(); }

  static DeviceStatistics::Tensor Of(const TensorView& view,
                                     uintptr_t stream = 0) {
    DeviceStatistics::Tensor tensor;
    tensor.view = view;
    tensor.stream = stream;
    return tensor;
  }
  std::vector<ReducedNumbers> Take(absl::Status* status = nullptr) {
    DeviceStatistics::Delivery delivery = statistics_.TakePending({{0, 0}});
    std::vector<ReducedNumbers> numbers(delivery.end() - delivery.first());
    const absl::Status waited = delivery.Wait(numbers.data());
    if (status == nullptr) {
      EXPECT_TRUE(waited.ok()) << waited;
    } else {
      *status = waited;
    }
    return numbers;
  }

  DeviceStatistics statistics_{RANKPROBE_FAKE_CUDA, kStatisticsKernelPtx};
};

double Number(const StatValue& value) {
  switch (value.kind) {
    case StatValue::Kind::kFloat:
      return value.f;
    case StatValue::Kind::kInt:
      return static_cast<double>(value.i);
    case StatValue::Kind::kBool:
      return value.b ? 1 : 0;
    default:
      return -1e300;
  }
}

void ExpectSame(const TensorView& view, const ReducedNumbers& numbers,
                const std::string& what) {
  SummaryRequest request;
  const Statistics want = Summarize(view, request).statistics,
                   got = StatisticsOfReduced(view.dtype, view.sizes.empty(),
                                             Precision::kLow, numbers);
  const auto exact = [&](const StatValue& w, const StatValue& g) {
    EXPECT_EQ(w.kind, g.kind) << what;
    if (w.kind == StatValue::Kind::kInt) EXPECT_EQ(w.i, g.i) << what;
    const double a = Number(w), b = Number(g);
    EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
        << what << ": " << a << ", " << b;
  };
  exact(want.max, got.max);
  exact(want.min, got.min);
  for (const auto& [w, g] :
       {std::pair{want.mean, got.mean}, std::pair{want.norm, got.norm}}) {
    ASSERT_EQ(w.kind, g.kind) << what;
    const double a = Number(w), b = Number(g);
    const double unit = view.dtype == v1::DTYPE_BFLOAT16  ? 0x1p-8
                        : view.dtype == v1::DTYPE_FLOAT16 ? 0x1p-11
                                                          : 0x1p-22;
    EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b)) ||
                std::abs(a - b) <= unit * std::abs(a))
        << what << ": " << a << ", " << b;
  }
}

constexpr std::array kDtypes = {
    v1::DTYPE_FLOAT16, v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT32, v1::DTYPE_FLOAT64,
    v1::DTYPE_BOOL,    v1::DTYPE_UINT8,    v1::DTYPE_INT8,    v1::DTYPE_INT16,
    v1::DTYPE_INT32,   v1::DTYPE_INT64};

struct Shape {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

TEST_F(DeviceStatisticsTest, EveryDtypeAndLayoutIsAsOnTheHost) {
  const std::vector<Shape> shapes = {
      {{}, {}},
      {{}, {}, 3},
      {{1}, {1}},
      {{7}, {1}},
      {{7}, {1}, 1},
      {{4096}, {1}},
      {{4099}, {1}},
      {{4099}, {1}, 5},
      {{64, 48}, {48, 1}},
      {{48, 64}, {1, 48}},
      {{64, 16}, {48, 1}},
      {{64, 16}, {48, 1}, 16},
      {{64, 16}, {48, 1}, 3},
      {{31, 5}, {48, 3}},
      {{16, 9}, {48, 0}},
      {{4, 3, 8}, {96, 24, 1}},
      {{2, 3, 4, 5, 2, 2}, {2048, 640, 128, 16, 8, 3}},
      {{5, 4, 3, 2, 3, 2, 2}, {2048, 640, 128, 40, 17, 8, 3}},
      {{64}, {-1}, 63},
      {{8, 8}, {4, 1}},  // overlaps
      {{600, 1000}, {1000, 1}},
      {{599999}, {1}, 1},
  };
  constexpr size_t kBytes = 5 << 20;
  // 64-bit words, for the alignment of an allocation on a device.
  std::vector<uint64_t> memory(kBytes / 8);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> normals(1 << 16);
  for (float& value : normals) value = normal(random);
  for (const v1::DType dtype : kDtypes) {
    const auto element = static_cast<int64_t>(ElementSize(dtype));
    for (uint64_t& word : memory) word = random();
    if (dtype == v1::DTYPE_BOOL) {
      for (uint64_t& word : memory) word &= 0x0101010101010101;
    }
    if (FamilyOf(dtype) == Family::kFloat) {
      // Random bits are often NaN or infinite, so most numbers are ordinary
      // ones.
      auto* const bytes = reinterpret_cast<char*>(memory.data());
      for (size_t at = 0; at < kBytes; at += static_cast<size_t>(element)) {
        const float value =
            normals[at / static_cast<size_t>(element) % normals.size()];
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        const auto half = static_cast<uint16_t>(
            dtype == v1::DTYPE_BFLOAT16 ? bits >> 16 : bits >> 8 & 0xbfff);
        const double wide = value;
        std::memcpy(bytes + at,
                    element == 2   ? static_cast<const void*>(&half)
                    : element == 4 ? static_cast<const void*>(&value)
                                   : &wide,
                    static_cast<size_t>(element));
      }
    }
    std::vector<TensorView> views;
    for (const Shape& shape : shapes) {
      // The kernel does not support single elements with one dimension too
      // many.
      views.push_back({reinterpret_cast<const char*>(memory.data()) +
                           shape.offset * element,
                       dtype, shape.sizes, shape.strides});
      const absl::StatusOr<uint64_t> slot =
          statistics_.Reduce(Of(views.back()));
      if (shape.sizes.size() == 7) {
        EXPECT_EQ(slot.status().code(), absl::StatusCode::kUnimplemented);
        views.pop_back();
      } else {
        ASSERT_TRUE(slot.ok()) << slot.status();
      }
    }
    const std::vector<ReducedNumbers> numbers = Take();
    ASSERT_EQ(numbers.size(), views.size());
    for (size_t i = 0; i < views.size(); ++i) {
      ExpectSame(views[i], numbers[i],
                 std::string(TorchDtypeName(dtype)) + " " + std::to_string(i));
    }
  }
}

template <typename T>
TensorView Line(v1::DType dtype, const std::vector<T>& values) {
  static const int64_t kOne = 1;
  static thread_local std::array<int64_t, 64> sizes;
  static thread_local size_t used = 0;
  int64_t& size = sizes[used++ % sizes.size()];
  size = static_cast<int64_t>(values.size());
  return {values.data(), dtype, {&size, 1}, {&kOne, 1}};
}

TEST_F(DeviceStatisticsTest, ValuesThatAreNoOrdinaryNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> cases = {{1, nan, 2},
                                                 {nan},
                                                 {nan, inf},
                                                 {inf, -inf, 1},
                                                 {inf},
                                                 {-inf},
                                                 {-0.0F, 0.0F},
                                                 {1e-45F, -1e-45F},
                                                 {1e-42F, 3e-42F},
                                                 {3e38F, 3e38F},
                                                 {1e30F, -1e30F},
                                                 {0, 0, 0},
                                                 {1e-30F, 2e-30F},
                                                 {-1, -2, -3},
                                                 {16777217.F, 1.F},
                                                 {-3e38F}};
  std::vector<TensorView> views;
  for (const auto& values : cases) {
    views.push_back(Line(v1::DTYPE_FLOAT32, values));
    ASSERT_TRUE(statistics_.Reduce(Of(views.back())).ok());
  }
  // Each float16, and each bfloat16, alone.
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<ReducedNumbers> numbers = Take();
  for (size_t i = 0; i < views.size(); ++i)
    ExpectSame(views[i], numbers[i], "case " + std::to_string(i));
  for (const v1::DType dtype : {v1::DTYPE_FLOAT16, v1::DTYPE_BFLOAT16}) {
    for (size_t begin = 0; begin < all.size(); begin += 1024) {
      std::vector<ReducedNumbers> some;
      for (size_t i = begin; i < begin + 1024; ++i) {
        const TensorView one{&all[i], dtype, {}, {}};
        ASSERT_TRUE(statistics_.Reduce(Of(one)).ok());
      }
      some = Take();
      for (size_t i = begin; i < begin + 1024; ++i) {
        ExpectSame({&all[i], dtype, {}, {}}, some[i - begin],
                   "bits " + std::to_string(i));
      }
    }
  }
  const std::vector<int64_t> wide = {std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max()};
  ASSERT_TRUE(statistics_.Reduce(Of(Line(v1::DTYPE_INT64, wide))).ok());
  ExpectSame(Line(v1::DTYPE_INT64, wide), Take()[0], "int64");
}

TEST_F(DeviceStatisticsTest, OneLaunchATensorAndOneWaitForAll) {
  const std::vector<float> values(5000, 2);
  ASSERT_TRUE(statistics_.Reduce(Of(Line(v1::DTYPE_FLOAT32, values))).ok());
  const int allocations =
      Fake::Count("cuMemAlloc") + Fake::Count("cuMemHostAlloc");
  for (int i = 0; i < 99; ++i) {
    ASSERT_TRUE(statistics_.Reduce(Of(Line(v1::DTYPE_FLOAT32, values))).ok());
  }
  EXPECT_EQ(Fake::Count("cuLaunchKernel"), 100);
  EXPECT_EQ(Fake::Count("cuEventSynchronize"), 0);
  EXPECT_EQ(Take().size(), 100);
  EXPECT_EQ(Fake::Count("cuLaunchKernel"), 101);
  EXPECT_EQ(Fake::Count("cuEventSynchronize"), 1);
  // The next step uses the same memory.
  ASSERT_TRUE(statistics_.Reduce(Of(Line(v1::DTYPE_FLOAT32, values))).ok());
  EXPECT_EQ(Take().size(), 1);
  EXPECT_EQ(Fake::Count("cuMemAlloc") + Fake::Count("cuMemHostAlloc"),
            allocations);
}

TEST_F(DeviceStatisticsTest, StreamsAreWaitedFor) {
  std::vector<std::vector<float>> values;
  for (int i = 0; i < 30; ++i)
    values.emplace_back(10, static_cast<float>(i + 1));
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(statistics_
                    .Reduce(Of(Line(v1::DTYPE_FLOAT32, values[i]),
                               static_cast<uintptr_t>(i % 3 * 16)))
                    .ok());
  }
  DeviceStatistics::Delivery delivery = statistics_.TakePending({{0, 64}});
  std::vector<ReducedNumbers> numbers(30);
  ASSERT_TRUE(delivery.Wait(numbers.data()).ok());
  for (int i = 0; i < 30; ++i)
    ExpectSame(Line(v1::DTYPE_FLOAT32, values[i]), numbers[i], "stream");
}

TEST_F(DeviceStatisticsTest, ContentThatIsKnownIsReducedOnce) {
  const std::vector<float> values = {1, 2, 3};
  DeviceStatistics::Tensor tensor = Of(Line(v1::DTYPE_FLOAT32, values));
  tensor.storage = 7;
  const uint64_t slot = *statistics_.Reduce(tensor);
  EXPECT_EQ(*statistics_.Reduce(tensor), slot);
  ++tensor.version;
  EXPECT_EQ(*statistics_.Reduce(tensor), slot + 1);
  ++tensor.generation;
  EXPECT_EQ(*statistics_.Reduce(tensor), slot + 2);
  EXPECT_EQ(Take().size(), 3);
  EXPECT_EQ(*statistics_.Reduce(tensor), slot + 3);
}

TEST_F(DeviceStatisticsTest, SlotsOfOthersLieBetween) {
  const std::vector<float> values = {1, 2, 3};
  const TensorView view = Line(v1::DTYPE_FLOAT32, values);
  EXPECT_EQ(statistics_.TakeSlot(), 1);
  EXPECT_EQ(*statistics_.Reduce(Of(view)), 2);
  EXPECT_EQ(statistics_.TakeSlot(), 3);
  const std::vector<ReducedNumbers> numbers = Take();
  ASSERT_EQ(numbers.size(), 3);
  ExpectSame(view, numbers[1], "between");
  EXPECT_EQ(statistics_.first_slot(), 4);
}

TEST_F(DeviceStatisticsTest, AGraphThatIsCapturedIsLeftAlone) {
  const std::vector<float> values = {1, 2, 3};
  const TensorView view = Line(v1::DTYPE_FLOAT32, values);
  Fake::Capture(16);
  EXPECT_EQ(statistics_.Reduce(Of(view, 16)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(statistics_.Reduce(Of(view, 0)).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "the default stream may not be used meanwhile";
  EXPECT_EQ(Fake::Count("cuLaunchKernel"), 0);
  EXPECT_TRUE(statistics_.Reduce(Of(view, 32)).ok());
  // The copy cannot be queued in the stream that captures: these numbers are
  // lost.
  DeviceStatistics::Delivery delivery = statistics_.TakePending({{0, 16}});
  std::vector<ReducedNumbers> numbers(1);
  EXPECT_FALSE(delivery.Wait(numbers.data()).ok());
  Fake::Capture(UINTPTR_MAX);
  EXPECT_EQ(statistics_.TakeError(), "");
  EXPECT_TRUE(statistics_.Reduce(Of(view, 0)).ok());
  ExpectSame(view, Take()[0], "afterwards");
}

TEST_F(DeviceStatisticsTest, WhatFailsTurnsTheKernelOffAndIsNamed) {
  const std::vector<float> values = {1, 2, 3};
  const TensorView view = Line(v1::DTYPE_FLOAT32, values);
  for (const char* function :
       {"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxGetState",
        "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuModuleLoadData",
        "cuModuleGetFunction", "cuMemAlloc", "cuMemHostAlloc", "cuEventCreate",
        "cuLaunchKernel"}) {
    Fake::Reset();
    Fake::Fail(function, 2);
    DeviceStatistics statistics(RANKPROBE_FAKE_CUDA, kStatisticsKernelPtx);
    EXPECT_EQ(statistics.Reduce(Of(view)).status().code(),
              absl::StatusCode::kInternal)
        << function;
    EXPECT_EQ(statistics.TakeError(),
              std::string(function) + " failed: CUDA_ERROR_FAKE (2)");
    EXPECT_EQ(statistics.TakeError(), "") << "said once";
    Fake::Fail(function, 0);
    EXPECT_EQ(statistics.Reduce(Of(view)).status().code(),
              absl::StatusCode::kUnimplemented);
  }
  for (const char* function :
       {"cuMemcpyDtoHAsync", "cuEventRecord", "cuEventSynchronize"}) {
    Fake::Reset();
    DeviceStatistics statistics(RANKPROBE_FAKE_CUDA, kStatisticsKernelPtx);
    ASSERT_TRUE(statistics.Reduce(Of(view)).ok());
    Fake::Fail(function, 2);
    DeviceStatistics::Delivery delivery = statistics.TakePending({{0, 0}});
    ReducedNumbers numbers{};
    EXPECT_THAT(std::string(delivery.Wait(&numbers).message()),
                HasSubstr(function));
  }
  DeviceStatistics missing("librankprobe_no_such.so", kStatisticsKernelPtx);
  EXPECT_FALSE(missing.Reduce(Of(view)).ok());
  EXPECT_EQ(missing.TakeError(), "cannot load librankprobe_no_such.so");
  DeviceStatistics none("", kStatisticsKernelPtx);
  EXPECT_FALSE(none.Reduce(Of(view)).ok());
  EXPECT_EQ(none.TakeError(), "");
}

TEST_F(DeviceStatisticsTest, WhatItTookOfADeviceItGivesBack) {
  const std::vector<float> values = {1, 2, 3};
  {
    DeviceStatistics statistics(RANKPROBE_FAKE_CUDA, kStatisticsKernelPtx);
    ASSERT_TRUE(
        statistics.Reduce(Of(Line(v1::DTYPE_FLOAT32, values), 16)).ok());
    EXPECT_EQ(Fake::Count("cuMemFree"), 0);
  }
  EXPECT_EQ(Fake::Count("cuMemFree"), Fake::Count("cuMemAlloc"));
  EXPECT_EQ(Fake::Count("cuMemFreeHost"), Fake::Count("cuMemHostAlloc"));
  EXPECT_EQ(Fake::Count("cuEventDestroy"), Fake::Count("cuEventCreate"));
  EXPECT_EQ(Fake::Count("cuModuleUnload"), 1);
  EXPECT_EQ(Fake::Count("cuDevicePrimaryCtxRelease"), 1);
}

TEST_F(DeviceStatisticsTest, RoomForPartialResultsIsUsedAgain) {
  // Each has the maximum number of partial results.
  const std::vector<uint8_t> values(
      (device::kMaxBlocks * device::kThreads * device::kUnitsOfThread) + 1, 7);
  std::vector<uint8_t> other = values;
  other[1000] = 9;
  const TensorView a = Line(v1::DTYPE_UINT8, values),
                   b = Line(v1::DTYPE_UINT8, other);
  constexpr int kFit = StatisticsChunk::kPartials / device::kMaxBlocks;
  // At an odd address, so that elements are read one by one.
  const auto odd = [](TensorView view) {
    view.data = static_cast<const char*>(view.data) + 1;
    static const int64_t size = static_cast<int64_t>(
        device::kMaxBlocks * device::kThreads * device::kUnitsOfThread);
    view.sizes = {&size, 1};
    return view;
  };
  for (int i = 0; i <= kFit; ++i)
    ASSERT_TRUE(statistics_.Reduce(Of(odd(i % 2 == 0 ? a : b))).ok());
  EXPECT_EQ(Fake::Count("cuLaunchKernel"), kFit + 2) << "once in between";
  const std::vector<ReducedNumbers> numbers = Take();
  for (int i = 0; i <= kFit; ++i)
    EXPECT_EQ(numbers[i].words[0], i % 2 == 0 ? 7 : 9) << i;
  EXPECT_EQ(Fake::Count("cuMemAlloc"), 1);
}

TEST_F(DeviceStatisticsTest, WhatLiesOnTheDeviceIsBounded) {
  const std::vector<float> values = {1, 2, 3};
  const TensorView view = Line(v1::DTYPE_FLOAT32, values);
  for (uintptr_t stream = 0; stream < 16; ++stream)
    ASSERT_TRUE(statistics_.Reduce(Of(view, 16 * stream)).ok());
  EXPECT_FALSE(statistics_.full());
  EXPECT_EQ(statistics_.Reduce(Of(view, 16 * 16)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(statistics_.full());
  const std::vector<ReducedNumbers> numbers = Take();
  ASSERT_EQ(numbers.size(), 16);
  ExpectSame(view, numbers.front(), "first");
  ExpectSame(view, numbers.back(), "last");
  EXPECT_FALSE(statistics_.full());
  EXPECT_TRUE(statistics_.Reduce(Of(view, 16 * 16)).ok());
  EXPECT_EQ(Fake::Count("cuMemAlloc"), 16);
}

TEST_F(DeviceStatisticsTest, ATensorWithoutElementsOrStatisticsIsNotForIt) {
  const std::vector<float> values = {1, 2};
  const int64_t zero = 0, one = 1;
  EXPECT_EQ(
      statistics_
          .Reduce(Of({values.data(), v1::DTYPE_FLOAT32, {&zero, 1}, {&one, 1}}))
          .status()
          .code(),
      absl::StatusCode::kUnimplemented);
  EXPECT_EQ(statistics_.Reduce(Of({values.data(), v1::DTYPE_COMPLEX64, {}, {}}))
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Take().size(), 0);
}

}  // namespace
}  // namespace rankprobe
