// SPDX-License-Identifier: Apache-2.0
// A fuzzer's input as a row of messages: one byte of kind, two of length, the
// bytes. What is cut off at the end is a shorter last message.
#ifndef RANKPROBE_TESTS_FUZZ_PIECES_H_
#define RANKPROBE_TESTS_FUZZ_PIECES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace rankprobe {

template <typename Use>
void ForEachPiece(const uint8_t* data, size_t size, Use use) {
  constexpr size_t kHeader = 3;
  for (int pieces = 0; size >= kHeader && pieces < 64; ++pieces) {
    const uint8_t kind = data[0];
    const size_t length =
        std::min<size_t>(data[1] | data[2] << 8, size - kHeader);
    use(kind,
        std::string(reinterpret_cast<const char*>(data) + kHeader, length));
    data += kHeader + length;
    size -= kHeader + length;
  }
}

}  // namespace rankprobe

#endif  // RANKPROBE_TESTS_FUZZ_PIECES_H_
