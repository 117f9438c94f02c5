// SPDX-License-Identifier: Apache-2.0
// CRC-32 by folding 256 bytes at a time with 512-bit carry-less products, alone
// or with the statistics of float32 from the same loads: the two keep different
// units of the CPU busy. Compile flags in common/tensor/CMakeLists.txt.
#include <immintrin.h>
#include <libdeflate.h>

#include <limits>

#include "common/tensor/kernels/crc32.h"
#include "common/tensor/kernels/kernels.h"

namespace rankprobe::kernels {
namespace {

// x^n modulo the polynomial, bit-reflected.
constexpr uint32_t PowerOfX(int n) {
  uint32_t v = 0x80000000;
  for (int i = 0; i < n; ++i) v = (v >> 1) ^ ((v & 1) != 0 ? 0xedb88320 : 0);
  return v;
}

// Factors that move the low and the high half of 128 bits forward by `kBits`.
// One bit further, because a product of reflected numbers is one bit short.
template <int kBits>
constexpr int64_t kLow = int64_t{PowerOfX(kBits + 32)} * 2;
template <int kBits>
constexpr int64_t kHigh = int64_t{PowerOfX(kBits - 32)} * 2;
// Known constants of folding by 512 bits.
static_assert(kLow<512> == 0x154442bd4 && kHigh<512> == 0x1c6e41596);

inline __m512i Fold(__m512i state, __m512i factors, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(state, factors, 0x00),
                high = _mm512_clmulepi64_epi128(state, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // xor of three
}

inline __m512i Load(const char* p) { return _mm512_loadu_si512(p); }

template <int kBits>
inline __m512i Factors() {
  return _mm512_broadcast_i32x4(_mm_set_epi64x(kHigh<kBits>, kLow<kBits>));
}

// The default for the additional work on each 64 bytes: none. `way` 0 to 3, in
// turn.
struct Nothing {
  void Add(int, __m512i) {}
};

class F32Sums {
 public:
  F32Sums() {
    for (int w = 0; w < 2; ++w) {
      max_[w] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
      min_[w] = _mm512_set1_ps(std::numeric_limits<float>::infinity());
    }
    for (int w = 0; w < 4; ++w) sum_[w] = squares_[w] = _mm512_setzero_pd();
  }

  // max and min return the second operand if the first is NaN.
  void Add(int way, __m512i bits) {
    const __m512 v = _mm512_castsi512_ps(bits);
    max_[way % 2] = _mm512_max_ps(v, max_[way % 2]);
    min_[way % 2] = _mm512_min_ps(v, min_[way % 2]);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                  high = _mm512_cvtps_pd(_mm256_castpd_ps(
                      _mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
    const int a = 2 * (way % 2), b = a + 1;
    sum_[a] = _mm512_add_pd(sum_[a], low);
    sum_[b] = _mm512_add_pd(sum_[b], high);
    squares_[a] = _mm512_fmadd_pd(low, low, squares_[a]);
    squares_[b] = _mm512_fmadd_pd(high, high, squares_[b]);
  }

  void AddTo(FloatStats* stats) const {
    for (int w = 0; w < 4; ++w) {
      stats->sum += _mm512_reduce_add_pd(sum_[w]);
      stats->sum_squares += _mm512_reduce_add_pd(squares_[w]);
    }
    const double max = _mm512_reduce_max_ps(_mm512_max_ps(max_[0], max_[1])),
                 min = _mm512_reduce_min_ps(_mm512_min_ps(min_[0], min_[1]));
    if (max > stats->max) stats->max = max;
    if (min < stats->min) stats->min = min;
  }

 private:
  __m512 max_[2], min_[2];
  __m512d sum_[4], squares_[4];
};

// CRC of `bytes` >= 512; the last `*rest` < 64 are left to the caller, the
// others are also passed to `also`.
template <typename Also>
inline uint32_t FoldAll(uint32_t crc, const char* p, size_t bytes, size_t* rest,
                        Also* also) {
  const auto take = [also](int way, const char* at) {
    const __m512i v = Load(at);
    also->Add(way, v);
    return v;
  };
  __m512i s0 = _mm512_xor_si512(
      take(0, p),
      _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc))));
  __m512i s1 = take(1, p + 64), s2 = take(2, p + 128), s3 = take(3, p + 192);
  p += 256;
  bytes -= 256;
  const __m512i by_2048 = Factors<2048>();
  for (; bytes >= 256; bytes -= 256, p += 256) {
    // The hardware prefetcher does not reach far enough ahead for this loop.
    for (size_t line = 0; line < 256; line += 64)
      __builtin_prefetch(p + 2048 + line);
    s0 = Fold(s0, by_2048, take(0, p));
    s1 = Fold(s1, by_2048, take(1, p + 64));
    s2 = Fold(s2, by_2048, take(2, p + 128));
    s3 = Fold(s3, by_2048, take(3, p + 192));
  }
  const __m512i by_512 = Factors<512>();
  s0 = Fold(s0, by_512, s1);
  s0 = Fold(s0, by_512, s2);
  s0 = Fold(s0, by_512, s3);
  for (; bytes >= 64; bytes -= 64, p += 64) s0 = Fold(s0, by_512, take(0, p));
  // Combines four times 128 bits: the first three are moved to the last.
  const __m512i to_last =
      _mm512_set_epi64(0, 0, kHigh<128>, kLow<128>, kHigh<256>, kLow<256>,
                       kHigh<384>, kLow<384>);
  const __m512i moved =
      _mm512_xor_si512(_mm512_clmulepi64_epi128(s0, to_last, 0x00),
                       _mm512_clmulepi64_epi128(s0, to_last, 0x11));
  const __m128i folded =
      _mm_xor_si128(_mm_xor_si128(_mm512_castsi512_si128(moved),
                                  _mm512_extracti32x4_epi32(moved, 1)),
                    _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2),
                                  _mm512_extracti32x4_epi32(s0, 3)));
  *rest = bytes;
  // The state counts as 16 bytes after a register of zero, which the library
  // represents as a CRC of all ones.
  char last[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last), folded);
  return libdeflate_crc32(~uint32_t{0}, last, sizeof(last));
}

}  // namespace

bool HasWideCrc32() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("vpclmulqdq");
}

uint32_t WideCrc32(uint32_t crc, const void* data, size_t bytes) {
  if (bytes < 512) return libdeflate_crc32(crc, data, bytes);
  Nothing nothing;
  size_t rest = 0;
  const char* const p = static_cast<const char*>(data);
  crc = FoldAll(crc, p, bytes, &rest, &nothing);
  return rest == 0 ? crc : libdeflate_crc32(crc, p + bytes - rest, rest);
}

uint32_t WideF32Crc32(uint32_t crc, const void* data, size_t count,
                      FloatStats* stats) {
  const size_t bytes = count * sizeof(float);
  const char* const p = static_cast<const char*>(data);
  size_t rest = bytes;
  if (bytes >= 512) {
    F32Sums sums;
    crc = FoldAll(crc, p, bytes, &rest, &sums);
    sums.AddTo(stats);
  }
  if (rest == 0) return crc;
  BestKernels().f32(p + bytes - rest, rest / sizeof(float), stats);
  return libdeflate_crc32(crc, p + bytes - rest, rest);
}

}  // namespace rankprobe::kernels
