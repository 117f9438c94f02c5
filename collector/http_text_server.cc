#include "collector/http_text_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

namespace rankprobe {
namespace {

constexpr int kPollMs = 100;
constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr size_t kMaxRequestBytes = 8 << 10;

// The head of the request; empty if it does not come in time or is too long.
std::string ReadHead(int client, absl::Time deadline) {
  std::string head;
  std::array<char, 1024> data;
  while (head.size() < kMaxRequestBytes && absl::Now() < deadline) {
    pollfd poll_fd{client, POLLIN, 0};
    if (::poll(&poll_fd, 1, kPollMs) <= 0) continue;
    const ssize_t n = ::recv(client, data.data(), data.size(), 0);
    if (n <= 0) return "";
    head.append(data.data(), static_cast<size_t>(n));
    if (absl::StrContains(head, "\r\n\r\n")) return head;
  }
  return "";
}

void WriteAll(int client, absl::string_view text, absl::Time deadline) {
  while (!text.empty() && absl::Now() < deadline) {
    pollfd poll_fd{client, POLLOUT, 0};
    if (::poll(&poll_fd, 1, kPollMs) <= 0) continue;
    const ssize_t n =
        ::send(client, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpTextServer>> HttpTextServer::Start(
    int port, std::string path, std::function<std::string()> text) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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
        absl::StrCat("cannot listen on 127.0.0.1:", port, ": ", reason));
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
  while (!stopping_) {
    pollfd poll_fd{listener_, POLLIN, 0};
    if (::poll(&poll_fd, 1, kPollMs) <= 0) continue;
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    Serve(client);
    ::close(client);
  }
}

void HttpTextServer::Serve(int client) const {
  const absl::Time deadline = absl::Now() + kPatience;
  const std::string head = ReadHead(client, deadline);
  if (head.empty()) return;
  const bool known = absl::StartsWith(head, absl::StrCat("GET ", path_, " ")) ||
                     absl::StartsWith(head, absl::StrCat("GET ", path_, "?"));
  const std::string body =
      known ? text_() : absl::StrCat("only ", path_, " is here\n");
  WriteAll(client,
           absl::StrCat("HTTP/1.1 ", known ? "200 OK" : "404 Not Found",
                        "\r\nContent-Type: text/plain; version=0.0.4; "
                        "charset=utf-8\r\nContent-Length: ",
                        body.size(), "\r\nConnection: close\r\n\r\n", body),
           deadline);
}

}  // namespace rankprobe
