// SPDX-License-Identifier: Apache-2.0
#include "tests/churn/flaky_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace rankprobe {
namespace {

constexpr size_t kMaxPending = 1 << 20;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

FlakyProxy::FlakyProxy(int port) : target_port_(port) {
  listen_fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  ::bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), length);
  ::listen(listen_fd_, 256);
  ::getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

FlakyProxy::~FlakyProxy() {
  stop_ = true;
  thread_.join();
  for (const Connection& c : connections_) {
    ::close(c.client);
    ::close(c.server);
  }
  ::close(listen_fd_);
}

void FlakyProxy::Accept() {
  Connection connection;
  connection.client = ::accept(listen_fd_, nullptr, nullptr);
  if (connection.client < 0) return;
  connection.server = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(target_port_);
  if (::connect(connection.server, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
    ::close(connection.client);
    ::close(connection.server);
    return;
  }
  connections_.push_back(std::move(connection));
}

// Reads what there is, writes what goes.
void FlakyProxy::Move(int from, int to, short revents, std::string* bytes,
                      bool* dead) {
  if ((revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
      bytes->size() < kMaxPending) {
    char buffer[65536];
    const ssize_t got = ::recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) {
      bytes->append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      *dead = true;
    }
  }
  if (bytes->empty()) return;
  const ssize_t put =
      ::send(to, bytes->data(), bytes->size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put > 0) bytes->erase(0, static_cast<size_t>(put));
  if (put < 0 && errno != EAGAIN && errno != EINTR) *dead = true;
}

void FlakyProxy::Run() {
  std::vector<pollfd> fds;
  while (!stop_) {
    fds.assign(1, {listen_fd_, POLLIN, 0});
    for (const Connection& c : connections_) {
      const auto wants = [](const std::string& in, const std::string& out) {
        return static_cast<short>((in.size() < kMaxPending ? POLLIN : 0) |
                                  (out.empty() ? 0 : POLLOUT));
      };
      fds.push_back({c.client, wants(c.up, c.down), 0});
      fds.push_back({c.server, wants(c.down, c.up), 0});
    }
    ::poll(fds.data(), fds.size(), 20);
    size_t i = 1;
    const int cut = cut_.exchange(-1);
    int number = 0;
    const int count = static_cast<int>(connections_.size());
    for (auto it = connections_.begin(); it != connections_.end(); i += 2) {
      Move(it->client, it->server, fds[i].revents, &it->up, &it->dead);
      Move(it->server, it->client, fds[i + 1].revents, &it->down, &it->dead);
      if (cut >= 0 && number++ == cut % count) {
        it->dead = true;
        ++cuts_;
      }
      if (it->dead) {
        ::close(it->client);
        ::close(it->server);
        it = connections_.erase(it);
      } else {
        ++it;
      }
    }
    if ((fds[0].revents & POLLIN) != 0) Accept();
  }
}

}  // namespace rankprobe
