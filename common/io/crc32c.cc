// SPDX-License-Identifier: Apache-2.0
#include "common/io/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__clang__)
#include <sys/auxv.h>
#endif

#include <array>
#include <cstddef>
#include <cstring>

namespace rankprobe {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit)
      c = (c & 1) ? (c >> 1) ^ kPolynomial : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

// The processor's instruction for eight bytes and for one.
#if defined(__x86_64__)
#define RANKPROBE_CRC32C_TARGET __attribute__((target("sse4.2")))
RANKPROBE_CRC32C_TARGET inline uint64_t Step8(uint64_t c, uint64_t v) {
  return _mm_crc32_u64(c, v);
}
RANKPROBE_CRC32C_TARGET inline uint32_t Step1(uint32_t c, unsigned char v) {
  return _mm_crc32_u8(c, v);
}
bool HasInstruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__clang__)
#define RANKPROBE_CRC32C_TARGET __attribute__((target("crc")))
RANKPROBE_CRC32C_TARGET inline uint64_t Step8(uint64_t c, uint64_t v) {
  return __builtin_arm_crc32cd(static_cast<uint32_t>(c), v);
}
RANKPROBE_CRC32C_TARGET inline uint32_t Step1(uint32_t c, unsigned char v) {
  return __builtin_arm_crc32cb(c, v);
}
bool HasInstruction() {
  constexpr uint64_t kCrc32 = 1u << 7;  // HWCAP_CRC32
  return (getauxval(AT_HWCAP) & kCrc32) != 0;
}
#endif

#ifdef RANKPROBE_CRC32C_TARGET
// The operator "append `bytes` zero bytes" as a table for each byte of the CRC,
// so that three independent streams can be joined.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

ShiftTable MakeShiftTable(size_t bytes) {
  ShiftTable table{};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t v = 0; v < 256; ++v) {
      uint32_t c = v << (8 * byte);
      for (size_t i = 0; i < bytes; ++i) c = kTable[c & 0xff] ^ (c >> 8);
      table[byte][v] = c;
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^
         table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

uint64_t Load64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// The instruction has a latency of three cycles, so three streams of kBytes are
// processed at once, as often as they fit.
template <size_t kBytes>
RANKPROBE_CRC32C_TARGET uint64_t ThreeStreams(const char** p, size_t* n,
                                              uint64_t c) {
  if (*n < 3 * kBytes) return c;
  static const ShiftTable shift = MakeShiftTable(kBytes);
  for (; *n >= 3 * kBytes; *p += 3 * kBytes, *n -= 3 * kBytes) {
    uint64_t c1 = 0, c2 = 0;
    for (size_t i = 0; i < kBytes; i += 8) {
      c = Step8(c, Load64(*p + i));
      c1 = Step8(c1, Load64(*p + i + kBytes));
      c2 = Step8(c2, Load64(*p + i + 2 * kBytes));
    }
    c = Shift(shift, static_cast<uint32_t>(c)) ^ c1;
    c = Shift(shift, static_cast<uint32_t>(c)) ^ c2;
  }
  return c;
}

RANKPROBE_CRC32C_TARGET uint32_t Crc32cHardware(const char* p, size_t n,
                                                uint32_t crc) {
  uint64_t c = ThreeStreams<1024>(&p, &n, crc);
  // A record typically has some hundred bytes.
  c = ThreeStreams<64>(&p, &n, c);
  for (; n >= 8; n -= 8, p += 8) c = Step8(c, Load64(p));
  uint32_t c32 = static_cast<uint32_t>(c);
  for (; n > 0; --n, ++p) c32 = Step1(c32, static_cast<unsigned char>(*p));
  return c32;
}
#else
bool HasInstruction() { return false; }
uint32_t Crc32cHardware(const char* p, size_t n, uint32_t crc) {
  return ~Crc32cPortable(absl::string_view(p, n), ~crc);
}
#endif

// Multiplies polynomials modulo kPolynomial; the coefficient of x^0 is the
// highest bit.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(2^n) for each n.
constexpr std::array<uint32_t, 64> MakePowers() {
  std::array<uint32_t, 64> powers{};
  powers[0] = uint32_t{1} << 30;
  for (size_t n = 1; n < powers.size(); ++n)
    powers[n] = Multiply(powers[n - 1], powers[n - 1]);
  return powers;
}
constexpr std::array<uint32_t, 64> kPowers = MakePowers();

}  // namespace

uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
  // Eight bits a byte: x^8 is x^(2^3).
  for (size_t n = 3; bytes_b != 0; bytes_b >>= 1, ++n) {
    if ((bytes_b & 1) != 0) crc_a = Multiply(kPowers[n & 63], crc_a);
  }
  return crc_a ^ crc_b;
}

uint32_t Crc32cPortable(absl::string_view data, uint32_t crc) {
  uint32_t c = ~crc;
  for (const char ch : data)
    c = kTable[(c ^ static_cast<unsigned char>(ch)) & 0xff] ^ (c >> 8);
  return ~c;
}

uint32_t Crc32c(absl::string_view data, uint32_t crc) {
  static const bool hardware = HasInstruction();
  if (!hardware) return Crc32cPortable(data, crc);
  return ~Crc32cHardware(data.data(), data.size(), ~crc);
}

}  // namespace rankprobe
