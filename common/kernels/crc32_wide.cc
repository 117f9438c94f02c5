// CRC-32 by folding 256 bytes at a time with 512-bit carry-less products.
// Compile flags in common/kernels.cmake.
#include <immintrin.h>
#include <libdeflate.h>

#include "common/kernels/crc32.h"

namespace rankprobe::kernels {
namespace {

// x^n modulo the polynomial, bit-reflected.
constexpr uint32_t PowerOfX(int n) {
  uint32_t v = 0x80000000;
  for (int i = 0; i < n; ++i) v = (v >> 1) ^ ((v & 1) != 0 ? 0xedb88320 : 0);
  return v;
}

// Factors that move the low and the high half of 128 bits forward by `kBits`.
// One bit up: a product of reflected numbers is a bit short.
template <int kBits>
constexpr int64_t kLow = int64_t{PowerOfX(kBits + 32)} * 2;
template <int kBits>
constexpr int64_t kHigh = int64_t{PowerOfX(kBits - 32)} * 2;
// Well-known constants of folding by 512 bits.
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

}  // namespace

bool HasWideCrc32() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("vpclmulqdq");
}

uint32_t WideCrc32(uint32_t crc, const void* data, size_t bytes) {
  if (bytes < 512) return libdeflate_crc32(crc, data, bytes);
  const char* p = static_cast<const char*>(data);
  __m512i s0 = _mm512_xor_si512(
      Load(p),
      _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc))));
  __m512i s1 = Load(p + 64), s2 = Load(p + 128), s3 = Load(p + 192);
  p += 256;
  bytes -= 256;
  const __m512i by_2048 = Factors<2048>();
  for (; bytes >= 256; bytes -= 256, p += 256) {
    s0 = Fold(s0, by_2048, Load(p));
    s1 = Fold(s1, by_2048, Load(p + 64));
    s2 = Fold(s2, by_2048, Load(p + 128));
    s3 = Fold(s3, by_2048, Load(p + 192));
  }
  const __m512i by_512 = Factors<512>();
  s0 = Fold(s0, by_512, s1);
  s0 = Fold(s0, by_512, s2);
  s0 = Fold(s0, by_512, s3);
  for (; bytes >= 64; bytes -= 64, p += 64) s0 = Fold(s0, by_512, Load(p));
  // Four times 128 bits become one: the first three move to the last.
  const __m512i to_last =
      _mm512_set_epi64(0, 0, kHigh<128>, kLow<128>, kHigh<256>, kLow<256>,
                       kHigh<384>, kLow<384>);
  const __m512i moved =
      _mm512_xor_si512(_mm512_clmulepi64_epi128(s0, to_last, 0x00),
                       _mm512_clmulepi64_epi128(s0, to_last, 0x11));
  const __m128i rest =
      _mm_xor_si128(_mm_xor_si128(_mm512_castsi512_si128(moved),
                                  _mm512_extracti32x4_epi32(moved, 1)),
                    _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2),
                                  _mm512_extracti32x4_epi32(s0, 3)));
  // What is left counts as 16 bytes after a register of zero, which the library
  // sees as a CRC of all ones.
  char last[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last), rest);
  const uint32_t folded = libdeflate_crc32(~uint32_t{0}, last, sizeof(last));
  return bytes == 0 ? folded : libdeflate_crc32(folded, p, bytes);
}

}  // namespace rankprobe::kernels
