// SPDX-License-Identifier: Apache-2.0
// CRC-32C for wire.py: each message of an agent has one, and Python's own loop makes
// 10 MB a second.
#include <stddef.h>
#include <stdint.h>

static uint32_t table[8][256];

__attribute__((constructor)) static void make_tables(void) {
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? (c >> 1) ^ 0x82f63b78 : c >> 1;
    table[0][i] = c;
  }
  for (int k = 1; k < 8; ++k)
    for (int i = 0; i < 256; ++i)
      table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
}

uint32_t crc32c(const uint8_t* p, size_t n) {
  uint32_t c = 0xffffffff;
  for (; n >= 8; n -= 8, p += 8) {
    c ^= p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
    c = table[7][c & 0xff] ^ table[6][c >> 8 & 0xff] ^ table[5][c >> 16 & 0xff] ^
        table[4][c >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
        table[0][p[7]];
  }
  for (; n > 0; --n, ++p) c = (c >> 8) ^ table[0][(c ^ *p) & 0xff];
  return ~c;
}
