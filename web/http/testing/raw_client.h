// SPDX-License-Identifier: Apache-2.0
// A client of the HTTP server that sends arbitrary bytes, for tests. Not
// thread-safe.
#ifndef RANKPROBE_WEB_HTTP_TESTING_RAW_CLIENT_H_
#define RANKPROBE_WEB_HTTP_TESTING_RAW_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace rankprobe {

// Waits at most a minute for bytes.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer,
                   sizeof receive_buffer);
    }
    const timeval patience{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address),
        0);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { Close(); }

  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Returns false if the server does not accept more bytes.
  bool Say(absl::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  int fd() const { return fd_; }
  // Reads one byte or more; false at the end of the connection.
  bool More() {
    char bytes[16 << 10];
    const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
    if (got > 0) heard_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }
  std::string Rest() {
    while (More()) {
    }
    return std::exchange(heard_, "");
  }
  // Reads up to the end of one answer with a length.
  std::string Answer() {
    while (true) {
      const size_t head = heard_.find("\r\n\r\n");
      const size_t length = heard_.find("Content-Length: ");
      if (head != std::string::npos && length != std::string::npos) {
        const size_t whole =
            head + 4 + std::strtoul(heard_.c_str() + length + 16, nullptr, 10);
        if (heard_.size() >= whole) {
          std::string answer = heard_.substr(0, whole);
          heard_.erase(0, whole);
          return answer;
        }
      }
      if (!More()) return std::exchange(heard_, "");
    }
  }

 private:
  int fd_;
  std::string heard_;
};

// Joins the pieces of a chunked body; returns "broken" if they are not
// complete.
inline std::string Unchunked(absl::string_view answer) {
  std::string body;
  answer.remove_prefix(answer.find("\r\n\r\n") + 4);
  while (true) {
    const size_t line = answer.find("\r\n");
    if (line == absl::string_view::npos) return "broken";
    const size_t length =
        std::strtoul(std::string(answer.substr(0, line)).c_str(), nullptr, 16);
    if (answer.size() < line + length + 4) return "broken";
    absl::StrAppend(&body, answer.substr(line + 2, length));
    if (length == 0) return answer.size() == line + 4 ? body : "broken";
    answer.remove_prefix(line + length + 4);
  }
}

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_TESTING_RAW_CLIENT_H_
