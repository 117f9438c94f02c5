// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/summary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/tensor/dtype.h"
#include "common/tensor/kernels/kernels.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr float kFloatInf = std::numeric_limits<float>::infinity();
constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

// A contiguous tensor that owns its memory.
template <typename T>
struct Tensor {
  Tensor(v1::DType dtype, std::vector<int64_t> shape, std::vector<T> values)
      : data(std::move(values)),
        sizes(std::move(shape)),
        strides(sizes.size()) {
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      strides[d] = stride;
      stride *= sizes[d];
    }
    view = {data.data(), dtype, sizes, strides};
  }
  Tensor(const Tensor&) = delete;
  std::vector<T> data;
  std::vector<int64_t> sizes, strides;
  TensorView view;
};

Summary Sum(const TensorView& view, ChecksumMode mode = ChecksumMode::kNone,
            Precision precision = Precision::kLow) {
  SummaryRequest request;
  request.checksum = mode;
  request.precision = precision;
  request.digest = true;
  return Summarize(view, request);
}

uint32_t Crc(const TensorView& view) {
  return Sum(view, ChecksumMode::kCrc32).crc32;
}

// The vectors were made with PyTorch and zlib (see docs/formats.md).
TEST(SummaryTest, ChecksumVectors) {
  Tensor<float> f32(v1::DTYPE_FLOAT32, {2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(Crc(f32.view), 0x91e79017u);
  EXPECT_EQ(Sum(f32.view, ChecksumMode::kXor64).xor64, 0x3f60000000800000u);
  const std::vector<int64_t> sizes = {3, 2}, strides = {1, 3};
  EXPECT_EQ(Crc({f32.data.data(), v1::DTYPE_FLOAT32, sizes, strides}),
            0x5fcfa77au);
  Tensor<uint16_t> bf16(v1::DTYPE_BFLOAT16, {2, 3},
                        {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0});
  EXPECT_EQ(Crc(bf16.view), 0x3ae021b3u);
  Tensor<int8_t> i8(v1::DTYPE_INT8, {2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(Crc(i8.view), 0x30ebcf4au);
  EXPECT_EQ(Sum(i8.view, ChecksumMode::kXor64).xor64, 0x0000050403020100u);
  Tensor<uint8_t> boolean(v1::DTYPE_BOOL, {2, 3}, {0, 1, 1, 1, 1, 1});
  EXPECT_EQ(Crc(boolean.view), 0x5bc08496u);
  Tensor<float> scalar(v1::DTYPE_FLOAT32, {}, {3.5f});
  EXPECT_EQ(Crc(scalar.view), 0x3265f52bu);
  Tensor<float> empty(v1::DTYPE_FLOAT32, {0}, {});
  EXPECT_EQ(Crc(empty.view), 0u);
}

void ExpectFloats(const Statistics& s, double max, double min, double mean,
                  double norm) {
  for (const auto& [value, expected] :
       {std::pair(s.max, max), std::pair(s.min, min), std::pair(s.mean, mean),
        std::pair(s.norm, norm)}) {
    ASSERT_EQ(value.kind, StatValue::Kind::kFloat);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value.f));
    } else {
      EXPECT_EQ(value.f, expected);
    }
  }
}

TEST(SummaryTest, FloatRows) {
  ExpectFloats(
      Sum(Tensor<float>(v1::DTYPE_FLOAT32, {2}, {3, -4}).view).statistics, 3,
      -4, -0.5, 5);
  ExpectFloats(
      Sum(Tensor<float>(v1::DTYPE_FLOAT32, {3}, {1, kFloatNan, 2}).view)
          .statistics,
      NAN, NAN, NAN, NAN);
  ExpectFloats(
      Sum(Tensor<float>(v1::DTYPE_FLOAT32, {2}, {kFloatInf, -kFloatInf}).view)
          .statistics,
      kFloatInf, -kFloatInf, NAN, kFloatInf);
  ExpectFloats(
      Sum(Tensor<float>(v1::DTYPE_FLOAT32, {2}, {-0.0f, 0.0f}).view).statistics,
      0, 0, 0, 0);
  EXPECT_TRUE(std::signbit(
      Sum(Tensor<float>(v1::DTYPE_FLOAT32, {2}, {-0.0f, -0.0f}).view)
          .statistics.max.f));
  EXPECT_FALSE(std::signbit(
      Sum(Tensor<float>(v1::DTYPE_FLOAT32, {2}, {-0.0f, 0.0f}).view)
          .statistics.min.f));
  EXPECT_EQ(Sum(Tensor<float>(v1::DTYPE_FLOAT32, {2}, {1e-45f, 1e38f}).view)
                .statistics.norm.f,
            kFloatInf);
  // 0-dim: the value itself, with its sign, four times.
  ExpectFloats(Sum(Tensor<float>(v1::DTYPE_FLOAT32, {}, {-3}).view).statistics,
               -3, -3, -3, -3);
}

TEST(SummaryTest, SixteenBitResultsAreRoundedToTheirType) {
  // [0..5]: the norm is 7.4161984...
  Tensor<uint16_t> f16(v1::DTYPE_FLOAT16, {6},
                       {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500});
  ExpectFloats(Sum(f16.view).statistics, 5, 0, 2.5, 7.41796875);
  Tensor<uint16_t> bf16(v1::DTYPE_BFLOAT16, {6},
                        {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0});
  ExpectFloats(Sum(bf16.view).statistics, 5, 0, 2.5, 7.40625);
  // bf16 [1.5, -2.5, 0.1] and fp16 [60000, 60000].
  Tensor<uint16_t> mixed(v1::DTYPE_BFLOAT16, {3}, {0x3fc0, 0xc020, 0x3dcd});
  const Statistics s = Sum(mixed.view).statistics;
  EXPECT_EQ(s.mean.f, -0.30078125);
  EXPECT_EQ(s.norm.f, 2.921875);
  Tensor<uint16_t> big(v1::DTYPE_FLOAT16, {2}, {0x7b53, 0x7b53});
  EXPECT_EQ(Sum(big.view).statistics.mean.f, 60000);
  EXPECT_EQ(Sum(big.view).statistics.norm.f, kFloatInf);
  // High precision keeps fp32 results.
  EXPECT_FLOAT_EQ(
      Sum(f16.view, ChecksumMode::kNone, Precision::kHigh).statistics.norm.f,
      std::sqrt(55.0f));
}

TEST(SummaryTest, OtherTypes) {
  const Statistics f64 =
      Sum(Tensor<double>(v1::DTYPE_FLOAT64, {2}, {1.5, -2}).view).statistics;
  EXPECT_EQ(f64.max.f, 1.5);
  EXPECT_EQ(f64.mean.kind, StatValue::Kind::kNull);
  EXPECT_EQ(f64.norm.kind, StatValue::Kind::kNull);
  const int64_t big = (int64_t{1} << 62) + 1;
  const Statistics i64 =
      Sum(Tensor<int64_t>(v1::DTYPE_INT64, {3}, {big, -7, 0}).view).statistics;
  EXPECT_EQ(i64.max.i, big);
  EXPECT_EQ(i64.min.i, -7);
  EXPECT_EQ(i64.mean.kind, StatValue::Kind::kNull);
  const Statistics i0 =
      Sum(Tensor<int32_t>(v1::DTYPE_INT32, {}, {7}).view).statistics;
  EXPECT_EQ(i0.norm.kind, StatValue::Kind::kInt);
  EXPECT_EQ(i0.norm.i, 7);
  const Statistics boolean =
      Sum(Tensor<uint8_t>(v1::DTYPE_BOOL, {3}, {0, 1, 0}).view).statistics;
  EXPECT_EQ(boolean.max.kind, StatValue::Kind::kBool);
  EXPECT_TRUE(boolean.max.b);
  EXPECT_FALSE(boolean.min.b);
  const Statistics complex =
      Sum(Tensor<float>(v1::DTYPE_COMPLEX64, {1}, {3, 4}).view).statistics;
  EXPECT_EQ(complex.max.f, 5);
  EXPECT_EQ(complex.norm.kind, StatValue::Kind::kNull);
  EXPECT_EQ(Sum(Tensor<uint16_t>(v1::DTYPE_COMPLEX32, {1}, {1, 2}).view)
                .statistics.max.kind,
            StatValue::Kind::kNull);
  EXPECT_EQ(Sum(Tensor<float>(v1::DTYPE_FLOAT32, {0, 4}, {}).view)
                .statistics.max.kind,
            StatValue::Kind::kNull);
  const Statistics high =
      Sum(Tensor<int32_t>(v1::DTYPE_INT32, {2}, {3, 4}).view,
          ChecksumMode::kNone, Precision::kHigh)
          .statistics;
  EXPECT_EQ(high.norm.f, 5);
}

// Every table has the same extremes and checksums, and the same sums up to
// rounding, at sizes around the vector width and at odd addresses.
template <typename T>
std::string Text(const T& statistics) {
  v1::TensorStats out;
  StatisticsToProto(statistics, &out);
  return out.SerializeAsString();
}

ReducedNumbers Words(double max, double min, double mean, double norm) {
  ReducedNumbers out;
  const double v[] = {max, min, mean, norm};
  std::memcpy(out.words.data(), v, sizeof(v));
  return out;
}

TEST(SummaryTest, WhatADeviceReducedHasTheSameStatistics) {
  const auto same = [](const TensorView& view, const ReducedNumbers& numbers,
                       Precision precision = Precision::kLow) {
    return Text(Sum(view, ChecksumMode::kNone, precision).statistics) ==
           Text(StatisticsOfReduced(view.dtype, view.sizes.empty(), precision,
                                    numbers));
  };
  const double mean = 2.5 / 3, norm = std::sqrt(1 + 4 + 2.25);
  Tensor<float> f32(v1::DTYPE_FLOAT32, {3}, {1, -2, 3.5});
  const ReducedNumbers wide = Words(3.5, -2, mean, std::sqrt(1 + 4 + 12.25));
  EXPECT_TRUE(same(f32.view, wide));
  EXPECT_FALSE(same(f32.view, Words(3.5, -2, mean, norm)));
  // Rounded to their own type, or to float at the high precision.
  Tensor<uint16_t> bf16(v1::DTYPE_BFLOAT16, {3}, {0x3f80, 0xc000, 0x4060});
  EXPECT_TRUE(same(bf16.view, wide));
  EXPECT_TRUE(same(bf16.view, wide, Precision::kHigh));
  Tensor<double> f64(v1::DTYPE_FLOAT64, {3}, {1, -2, 3.5});
  EXPECT_TRUE(same(f64.view, wide)) << "no mean and norm";
  EXPECT_TRUE(same(f64.view, wide, Precision::kHigh));
  Tensor<float> nan(v1::DTYPE_FLOAT32, {2}, {1, kFloatNan});
  EXPECT_TRUE(
      same(nan.view, Words(kFloatNan, kFloatNan, kFloatNan, kFloatNan)));
  Tensor<float> scalar(v1::DTYPE_FLOAT32, {}, {-4});
  EXPECT_TRUE(same(scalar.view, Words(-4, 0, 0, 0)));
  Tensor<int64_t> i64(v1::DTYPE_INT64, {2}, {INT64_MAX, -7});
  EXPECT_TRUE(same(i64.view, {{uint64_t{INT64_MAX}, uint64_t(-7), 0, 0}}));
  Tensor<uint8_t> flags(v1::DTYPE_BOOL, {2}, {1, 0});
  EXPECT_TRUE(same(flags.view, {{1, 0, 0, 0}}));
  // Zeros to which a device may give either sign.
  Tensor<float> zero(v1::DTYPE_FLOAT32, {2}, {0, 0});
  EXPECT_TRUE(same(zero.view, Words(-0.0, -0.0, 0, 0)));
}

TEST(SummaryTest, InstructionSetsAgree) {
  std::mt19937 random(11);
  std::vector<char> bytes(9000);
  for (char& c : bytes) c = static_cast<char>(random());
  size_t count = 0;
  const kernels::Table* const* tables = kernels::UsableTables(&count);
  const kernels::Table& base = *tables[count - 1];
  std::vector<float> floats(2000);
  std::normal_distribution<float> normal;
  for (float& f : floats) f = normal(random);
  for (size_t t = 0; t + 1 < count; ++t) {
    for (size_t n :
         {0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 1999}) {
      kernels::FloatStats a, b;
      base.f32(floats.data(), n, &a);
      tables[t]->f32(floats.data(), n, &b);
      EXPECT_EQ(a.max, b.max);
      EXPECT_EQ(a.min, b.min);
      EXPECT_NEAR(a.sum, b.sum, 1e-9);
      EXPECT_NEAR(a.sum_squares, b.sum_squares, 1e-9);
      const char* odd = bytes.data() + 1;
      EXPECT_EQ(base.xor64(odd, n), tables[t]->xor64(odd, n));
      for (auto kernel :
           {&kernels::Table::i8, &kernels::Table::u8, &kernels::Table::i16,
            &kernels::Table::u16, &kernels::Table::i32, &kernels::Table::u32,
            &kernels::Table::i64}) {
        kernels::IntStats c, d;
        const size_t elements = std::min<size_t>(n, 1000);
        (base.*kernel)(odd, elements, &c);
        (tables[t]->*kernel)(odd, elements, &d);
        EXPECT_EQ(c.max, d.max);
        EXPECT_EQ(c.min, d.min);
      }
      for (auto kernel : {&kernels::Table::f16, &kernels::Table::bf16}) {
        kernels::FloatStats c, d;
        std::vector<uint16_t> halves(n);
        for (uint16_t& h : halves)
          h = static_cast<uint16_t>(random() & 0xbfff);  // finite
        (base.*kernel)(halves.data(), n, &c);
        (tables[t]->*kernel)(halves.data(), n, &d);
        EXPECT_EQ(c.max, d.max);
        EXPECT_EQ(c.min, d.min);
        EXPECT_NEAR(c.sum, d.sum, 1e-3 * n);
      }
    }
  }
}

TEST(SummaryTest, HalfConversionOfAllValues) {
  size_t count = 0;
  const kernels::Table* const* tables = kernels::UsableTables(&count);
  for (uint32_t h = 0; h < 65536; ++h) {
    const std::vector<uint16_t> v(32, static_cast<uint16_t>(h));
    kernels::FloatStats first;
    tables[count - 1]->f16(v.data(), 32, &first);
    for (size_t t = 0; t + 1 < count; ++t) {
      kernels::FloatStats other;
      tables[t]->f16(v.data(), 32, &other);
      if (std::isnan(first.sum_squares)) {
        EXPECT_TRUE(std::isnan(other.sum_squares)) << h;
      } else {
        EXPECT_EQ(first.max, other.max) << h;
      }
    }
  }
}

TEST(SummaryTest, NanIsFoundAtEveryPosition) {
  for (size_t n : {1, 31, 32, 33, 100}) {
    for (size_t at = 0; at < n; ++at) {
      Tensor<float> t(v1::DTYPE_FLOAT32, {static_cast<int64_t>(n)},
                      std::vector<float>(n, 1));
      t.data[at] = kFloatNan;
      EXPECT_TRUE(std::isnan(Sum(t.view).statistics.max.f))
          << n << " at " << at;
      Tensor<uint16_t> h(v1::DTYPE_BFLOAT16, {static_cast<int64_t>(n)},
                         std::vector<uint16_t>(n, 0x3f80));
      h.data[at] = 0x7fc0;
      EXPECT_TRUE(std::isnan(Sum(h.view).statistics.min.f))
          << n << " at " << at;
    }
  }
}

TEST(SummaryTest, CopiesPastTheCachesAreCopies) {
  std::vector<char> from(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7);
  size_t count = 0;
  const kernels::Table* const* tables = kernels::UsableTables(&count);
  for (size_t k = 0; k < count; ++k) {
    for (size_t at = 0; at < 65; ++at) {
      for (const size_t bytes : {0, 1, 63, 64, 65, 127, 128, 700}) {
        std::vector<char> to(1000, 'x');
        tables[k]->copy_past_caches(to.data() + at, from.data() + 3, bytes);
        std::vector<char> want(1000, 'x');
        std::copy_n(from.begin() + 3, bytes,
                    want.begin() + static_cast<ptrdiff_t>(at));
        ASSERT_EQ(to, want) << tables[k]->name << " " << bytes << " at " << at;
      }
    }
  }
}

TEST(SummaryTest, CopiesOfAllSizesAreTheTensor) {
  std::mt19937 random(5);
  for (const size_t n : {1, 15, 16383, 16384, 16385, 70001, 600000}) {
    std::vector<float> from(n + 1), to(n + 3, 7);
    for (float& f : from) f = static_cast<float>(random());
    const int64_t size = static_cast<int64_t>(n), stride = 1;
    SummaryRequest request;
    request.copy_to = to.data() + 1;
    (void)Summarize(
        {from.data() + 1, v1::DTYPE_FLOAT32, absl::MakeConstSpan(&size, 1),
         absl::MakeConstSpan(&stride, 1)},
        request);
    EXPECT_TRUE(std::equal(from.begin() + 1, from.end(), to.begin() + 1)) << n;
    EXPECT_EQ(to[0], 7) << n;
    EXPECT_EQ(to[n + 1], 7) << n;
    EXPECT_EQ(to[n + 2], 7) << n;
  }
}

// Strided views have the same results as their contiguous copies.
TEST(SummaryTest, StridedViewsEqualTheirCopies) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> storage(64 * 300);
  for (float& f : storage) f = normal(random);
  struct Case {
    std::vector<int64_t> sizes, strides;
    int64_t offset;
  };
  const Case cases[] = {{{300, 64}, {1, 300}, 0},
                        {{64, 150}, {300, 2}, 1},
                        {{5, 64, 7}, {7, 300, 1}, 3},
                        {{64, 300}, {300, -1}, 299},
                        {{10, 64, 3}, {0, 300, 1}, 0},
                        {{1, 299}, {5, 1}, 0},
                        {{9000}, {2}, 0},
                        {{3, 0, 2}, {1, 1, 1}, 0}};
  for (const Case& c : cases) {
    const TensorView view = {storage.data() + c.offset, v1::DTYPE_FLOAT32,
                             c.sizes, c.strides};
    std::vector<float> copy(static_cast<size_t>(NumElements(view)));
    std::vector<int64_t> index(c.sizes.size(), 0);
    for (float& out : copy) {
      int64_t at = c.offset;
      for (size_t d = 0; d < index.size(); ++d) at += index[d] * c.strides[d];
      out = storage[static_cast<size_t>(at)];
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < c.sizes[d]) break;
        index[d] = 0;
      }
    }
    std::vector<float> written(copy.size());
    SummaryRequest request;
    request.checksum = ChecksumMode::kCrc32;
    request.digest = true;
    request.copy_to = written.data();
    const Summary got = Summarize(view, request);
    request.copy_to = nullptr;
    const int64_t n = static_cast<int64_t>(copy.size());
    const std::vector<int64_t> sizes = {n}, strides = {1};
    const Summary want =
        Summarize({copy.data(), v1::DTYPE_FLOAT32, sizes, strides}, request);
    EXPECT_EQ(written, copy);
    EXPECT_EQ(got.crc32, want.crc32);
    EXPECT_EQ(got.digest, want.digest);
    EXPECT_EQ(got.statistics.max.kind, want.statistics.max.kind);
    if (n > 0) {
      EXPECT_EQ(got.statistics.max.f, want.statistics.max.f);
      EXPECT_EQ(got.statistics.norm.f, want.statistics.norm.f);
    }
  }
}

TEST(DtypeTest, NamesRoundTrip) {
  for (int i = v1::DType_MIN + 1; i <= v1::DType_MAX; ++i) {
    const v1::DType dtype = static_cast<v1::DType>(i);
    EXPECT_GT(ElementSize(dtype), 0u);
    EXPECT_EQ(ParseDtype(TorchDtypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDtype("torch.nothing"), v1::DTYPE_UNSPECIFIED);
}

}  // namespace
}  // namespace rankprobe
