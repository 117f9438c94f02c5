// SPDX-License-Identifier: Apache-2.0
// A server on loopback that answers each request as a test specifies:
// completely, partly, late or not at all. One thread per connection; all end
// with the server.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_TESTING_LOOPBACK_HTTP_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_TESTING_LOOPBACK_HTTP_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe::testing {

class LoopbackHttp {
 public:
  // Gets head (request line and headers) and body of a request, and returns the
  // bytes of the answer. Afterwards the connection is closed; with `hang` it
  // stays open and silent until the client disconnects.
  struct Answer {
    std::string bytes;
    bool hang = false;
  };
  using Handler =
      std::function<Answer(const std::string& head, const std::string& body)>;

  explicit LoopbackHttp(Handler handler) : handler_(std::move(handler)) {
    listen_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listen_, any, size) != 0 || ::listen(listen_, 64) != 0 ||
        ::getsockname(listen_, any, &size) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Accept(); });
  }
  ~LoopbackHttp() {
    ::shutdown(listen_, SHUT_RDWR);
    thread_.join();
    ::close(listen_);
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::string endpoint() const {
    return absl::StrCat("http://127.0.0.1:", port_);
  }

  static std::string Http(int status, const std::string& body,
                          const std::string& headers = "") {
    return absl::StrCat("HTTP/1.1 ", status, " x\r\nConnection: close\r\n",
                        headers, "Content-Length: ", body.size(), "\r\n\r\n",
                        body);
  }
  static std::string Error(int status, const std::string& code) {
    return Http(status,
                absl::StrCat("<?xml version=\"1.0\"?><Error><Code>", code,
                             "</Code><Message>because</Message>"
                             "</Error>"));
  }

 private:
  void Accept() {
    while (true) {
      const int fd = ::accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      absl::MutexLock lock(&mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] { Serve(fd); });
    }
  }

  void Serve(int fd) {
    std::string in;
    char buffer[16384];
    size_t end = std::string::npos, length = 0;
    while (true) {
      end = in.find("\r\n\r\n");
      if (end != std::string::npos) {
        const size_t at = in.find("Content-Length: ");
        if (at != std::string::npos && at < end)
          length = std::strtoull(in.c_str() + at + 16, nullptr, 10);
        if (in.size() >= end + 4 + length) break;
      }
      const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
      if (n <= 0) break;
      in.append(buffer, static_cast<size_t>(n));
    }
    if (end != std::string::npos) {
      const Answer answer =
          handler_(in.substr(0, end), in.substr(end + 4, length));
      for (size_t at = 0; at < answer.bytes.size();) {
        const ssize_t n = ::send(fd, answer.bytes.data() + at,
                                 answer.bytes.size() - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += static_cast<size_t>(n);
      }
      while (answer.hang && ::recv(fd, buffer, sizeof(buffer), 0) > 0) {
      }
    }
    absl::MutexLock lock(&mutex_);
    for (int& open : open_) {
      if (open == fd) open = -1;
    }
    ::close(fd);
  }

  const Handler handler_;
  int listen_ = -1;
  int port_ = 0;
  std::thread thread_;
  absl::Mutex mutex_;
  std::vector<int> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_TESTING_LOOPBACK_HTTP_H_
