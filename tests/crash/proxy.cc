// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/time/clock.h"

namespace rankprobe::crash {
namespace {

constexpr int kPollMs = 20;
// What a client of HTTP/2 says first.
constexpr size_t kPrefaceBytes = 24;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool SendAll(int fd, const char* data, ssize_t size) {
  while (size > 0) {
    const ssize_t n = ::send(fd, data, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (n <= 0) return false;
    data += n;
    size -= n;
  }
  return true;
}

}  // namespace

Proxy::Proxy(int target_port) : target_port_(target_port) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) !=
          0)
    std::abort();
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

Proxy::~Proxy() {
  stopping_ = true;
  acceptor_.join();
  std::vector<std::thread> connections;
  {
    absl::MutexLock lock(&mutex_);
    connections = std::move(connections_);
  }
  for (std::thread& connection : connections) connection.join();
  ::close(listener_);
}

void Proxy::Stall(absl::Duration duration) {
  stalled_until_ns_ =
      absl::GetCurrentTimeNanos() + absl::ToInt64Nanoseconds(duration);
}

void Proxy::Flip(uint64_t up_bytes, uint64_t down_bytes, uint64_t seed) {
  absl::MutexLock lock(&flip_mutex_);
  random_.seed(seed);
  flip_bytes_ = {up_bytes, down_bytes};
  until_flip_ = flip_bytes_;
}

void Proxy::Damage(int side, Framing* framing, absl::Span<char> data) {
  absl::MutexLock lock(&flip_mutex_);
  while (!data.empty()) {
    if (framing->left == 0) {
      framing->header[framing->header_bytes++] =
          static_cast<unsigned char>(data[0]);
      data.remove_prefix(1);
      if (framing->header_bytes < framing->header.size()) continue;
      framing->header_bytes = 0;
      framing->left = size_t{framing->header[0]} << 16 |
                      size_t{framing->header[1]} << 8 | framing->header[2];
      framing->is_data = framing->header[3] == 0;
      continue;
    }
    const size_t bytes = std::min(framing->left, data.size());
    if (framing->is_data)
      DamageData(static_cast<size_t>(side), data.subspan(0, bytes));
    framing->left -= bytes;
    data.remove_prefix(bytes);
  }
}

void Proxy::DamageData(size_t i, absl::Span<char> data) {
  if (flip_bytes_[i] == 0) return;
  while (until_flip_[i] < data.size()) {
    char& byte = data[until_flip_[i]];
    byte = static_cast<char>(byte ^ (1 << random_() % 8));
    ++flips_;
    until_flip_[i] += 1 + random_() % (2 * flip_bytes_[i]);
  }
  until_flip_[i] -= data.size();
}

void Proxy::Accept() {
  while (!stopping_) {
    pollfd poll_fd{listener_, POLLIN, 0};
    if (::poll(&poll_fd, 1, kPollMs) <= 0) continue;
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    absl::MutexLock lock(&mutex_);
    connections_.emplace_back([this, client] { Serve(client); });
  }
}

void Proxy::Serve(int client) {
  const uint64_t cuts = cuts_, truncations = truncations_;
  const int target = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_port_);
  std::array<char, 64 << 10> data;
  std::array<Framing, 2> framing;
  framing[0].left = kPrefaceBytes;
  bool open = ::connect(target, reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) == 0;
  while (open && !stopping_ && cuts == cuts_) {
    if (absl::GetCurrentTimeNanos() < stalled_until_ns_) {
      absl::SleepFor(absl::Milliseconds(kPollMs));
      continue;
    }
    pollfd poll_fds[] = {{client, POLLIN, 0}, {target, POLLIN, 0}};
    if (::poll(poll_fds, 2, kPollMs) < 0) break;
    for (int side = 0; side < 2 && open; ++side) {
      if (poll_fds[side].revents == 0) continue;
      const ssize_t n = ::recv(poll_fds[side].fd, data.data(), data.size(), 0);
      const bool truncate = truncations != truncations_;
      if (n > 0)
        Damage(side, &framing[static_cast<size_t>(side)],
               absl::MakeSpan(data.data(), static_cast<size_t>(n)));
      open = n > 0 &&
             SendAll(poll_fds[1 - side].fd, data.data(), truncate ? n / 2 : n);
      if (truncate) open = false;
    }
  }
  ::close(client);
  ::close(target);
}

}  // namespace rankprobe::crash
