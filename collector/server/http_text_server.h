// SPDX-License-Identifier: Apache-2.0
// Answers GET of one path over HTTP/1.1 with a text that is made for each
// request; for Prometheus. All connections are served side by side, each cut
// off after two seconds, the oldest when there are too many, so that a slow or
// hostile peer costs nothing but its own answer. Ownership: one per server;
// what `text` asks outlives it.
#ifndef RANKPROBE_COLLECTOR_SERVER_HTTP_TEXT_SERVER_H_
#define RANKPROBE_COLLECTOR_SERVER_HTTP_TEXT_SERVER_H_

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {

class HttpTextServer {
 public:
  // Listens on `host`, an IPv4 address; port 0 takes a free one.
  static absl::StatusOr<std::unique_ptr<HttpTextServer>> Start(
      const std::string& host, int port, std::string path,
      std::function<std::string()> text);
  ~HttpTextServer();
  HttpTextServer(const HttpTextServer&) = delete;
  HttpTextServer& operator=(const HttpTextServer&) = delete;

  int port() const { return port_; }

 private:
  struct Client {
    int fd = -1;
    MonotonicTime deadline;
    std::string head;
    // Once the head is there: what is still to be sent of the answer.
    bool answered = false;
    std::string answer;
    size_t sent = 0;
  };

  HttpTextServer(int listener, int port, std::string path,
                 std::function<std::string()> text);
  void Run();
  void Accept();
  // False when the connection is done with.
  bool Serve(Client* client) const;
  std::string AnswerTo(const std::string& head) const;

  const int listener_;
  const int port_;
  const std::string path_;
  const std::function<std::string()> text_;
  std::atomic<bool> stopping_{false};
  // Of the thread; in order of acceptance.
  std::list<Client> clients_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_HTTP_TEXT_SERVER_H_
