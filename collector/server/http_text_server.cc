// SPDX-License-Identifier: Apache-2.0
#include "collector/server/http_text_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

constexpr int kPollMs = 100;
constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr size_t kMaxRequestBytes = 8 << 10;
constexpr size_t kMaxClients = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<HttpTextServer>> HttpTextServer::Start(
    const std::string& host, int port, std::string path,
    std::function<std::string()> text) {
  sockaddr_in address{};
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", host, ": not an IPv4 address"));
  }
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof(address);
  const int on = 1;
  if (listener < 0 ||
      ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, 16) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) !=
          0) {
    const std::string reason = std::strerror(errno);
    if (listener >= 0) ::close(listener);
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, ":", port, ": ", reason));
  }
  return std::unique_ptr<HttpTextServer>(new HttpTextServer(
      listener, ntohs(address.sin_port), std::move(path), std::move(text)));
}

HttpTextServer::HttpTextServer(int listener, int port, std::string path,
                               std::function<std::string()> text)
    : listener_(listener),
      port_(port),
      path_(std::move(path)),
      text_(std::move(text)),
      thread_([this] { Run(); }) {}

HttpTextServer::~HttpTextServer() {
  stopping_ = true;
  thread_.join();
  ::close(listener_);
}

void HttpTextServer::Run() {
  std::vector<pollfd> waiting;
  while (!stopping_) {
    waiting.assign(1, pollfd{listener_, POLLIN, 0});
    for (const Client& client : clients_) {
      waiting.push_back({client.fd,
                         static_cast<decltype(pollfd::events)>(
                             client.answered ? POLLOUT : POLLIN),
                         0});
    }
    const int ready = ::poll(waiting.data(), waiting.size(), kPollMs);
    size_t i = 0;
    for (auto it = clients_.begin(); it != clients_.end();) {
      const bool moved = ready > 0 && waiting[++i].revents != 0;
      if (MonotonicNow() < it->deadline && (!moved || Serve(&*it))) {
        ++it;
      } else {
        ::close(it->fd);
        it = clients_.erase(it);
      }
    }
    if (ready > 0 && waiting[0].revents != 0) Accept();
  }
  for (const Client& client : clients_) ::close(client.fd);
}

void HttpTextServer::Accept() {
  const int fd =
      ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    // Without descriptors it would be ready again at once.
    ::usleep(kPollMs * 1000);
    return;
  }
  if (clients_.size() >= kMaxClients) {
    ::close(clients_.front().fd);
    clients_.pop_front();
  }
  Client& client = clients_.emplace_back();
  client.fd = fd;
  client.deadline = MonotonicAfter(kPatience);
}

bool HttpTextServer::Serve(Client* client) const {
  if (!client->answered) {
    std::array<char, 1024> data;
    const ssize_t n = ::recv(client->fd, data.data(), data.size(), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    client->head.append(data.data(), static_cast<size_t>(n));
    if (!absl::StrContains(client->head, "\r\n\r\n"))
      return client->head.size() < kMaxRequestBytes;
    client->answer = AnswerTo(client->head);
    client->answered = true;
  }
  const ssize_t n = ::send(client->fd, client->answer.data() + client->sent,
                           client->answer.size() - client->sent, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  client->sent += static_cast<size_t>(n);
  return client->sent < client->answer.size();
}

std::string HttpTextServer::AnswerTo(const std::string& head) const {
  const bool known = absl::StartsWith(head, absl::StrCat("GET ", path_, " ")) ||
                     absl::StartsWith(head, absl::StrCat("GET ", path_, "?"));
  const std::string body =
      known ? text_() : absl::StrCat("only ", path_, " is here\n");
  return absl::StrCat("HTTP/1.1 ", known ? "200 OK" : "404 Not Found",
                      "\r\nContent-Type: text/plain; version=0.0.4; "
                      "charset=utf-8\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", body);
}

}  // namespace rankprobe
