// Answers GET of one path over HTTP/1.1 with a text that is made anew each
// time; for Prometheus. One connection at a time, each cut off after two
// seconds, so that a slow or hostile peer costs nothing but its own answer.
// Ownership: one per server; what `text` asks outlives it.
#ifndef RANKPROBE_COLLECTOR_HTTP_TEXT_SERVER_H_
#define RANKPROBE_COLLECTOR_HTTP_TEXT_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace rankprobe {

class HttpTextServer {
 public:
  // Listens on 127.0.0.1; port 0 takes a free one.
  static absl::StatusOr<std::unique_ptr<HttpTextServer>> Start(
      int port, std::string path, std::function<std::string()> text);
  ~HttpTextServer();
  HttpTextServer(const HttpTextServer&) = delete;
  HttpTextServer& operator=(const HttpTextServer&) = delete;

  int port() const { return port_; }

 private:
  HttpTextServer(int listener, int port, std::string path,
                 std::function<std::string()> text);
  void Run();
  void Serve(int client) const;

  const int listener_;
  const int port_;
  const std::string path_;
  const std::function<std::string()> text_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_HTTP_TEXT_SERVER_H_
