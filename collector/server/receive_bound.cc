// SPDX-License-Identifier: Apache-2.0
#include "collector/server/receive_bound.h"

#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <optional>

#include "absl/types/span.h"

namespace rankprobe {
namespace {

uint32_t BigEndian32(absl::Span<const uint8_t> bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

std::optional<uint32_t> FirstSequence(int fd) {
  std::array<uint8_t, 256> headers{};
  socklen_t size = headers.size();
  if (::getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, headers.data(), &size) != 0)
    return std::nullopt;
  const auto syn = absl::MakeConstSpan(headers).first(size);
  if (syn.empty()) return std::nullopt;
  size_t ip = 0;
  if (syn[0] >> 4 == 4) {
    ip = size_t{syn[0] & 0xFu} * 4;
  } else if (syn[0] >> 4 == 6 && syn.size() > 6 && syn[6] == IPPROTO_TCP) {
    ip = 40;
  } else {
    return std::nullopt;
  }
  if (syn.size() < ip + 8) return std::nullopt;
  // The SYN itself takes one sequence number.
  return BigEndian32(syn.subspan(ip + 4, 4)) + 1;
}

}  // namespace

void PrepareReceiveBounds(int listener) {
  const int on = 1;
  ::setsockopt(listener, IPPROTO_TCP, TCP_SAVE_SYN, &on, sizeof(on));
}

ReceiveBound::ReceiveBound(int fd) : first_(FirstSequence(fd)) {}

bool ReceiveBound::Set(int fd, uint64_t bytes) {
  if (!first_.has_value()) return false;
  const uint32_t end = *first_ + static_cast<uint32_t>(bytes);
  // A socket's filter sees the TCP header first; bytes 4 to 7 are the sequence
  // number. Numbers wrap: those less than 2^31 before `end` are before it.
  std::array<sock_filter, 5> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, 4},
      {BPF_ALU | BPF_SUB | BPF_K, 0, 0, end},
      {BPF_JMP | BPF_JGE | BPF_K, 1, 0, uint32_t{1} << 31},
      {BPF_RET | BPF_K, 0, 0, 0},
      {BPF_RET | BPF_K, 0, 0, 0xFFFFFFFF},
  }};
  const sock_fprog filter{program.size(), program.data()};
  set_ = ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter,
                      sizeof(filter)) == 0;
  return set_;
}

void ReceiveBound::Remove(int fd) {
  if (!set_) return;
  const int ignored = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof(ignored));
  set_ = false;
}

}  // namespace rankprobe
