// SPDX-License-Identifier: Apache-2.0
// A TCP proxy on loopback that cuts connections on command. One thread.
// Ownership: the test's. Threads: Cut from any; the rest from one.
#ifndef RANKPROBE_TESTS_CHURN_FLAKY_PROXY_H_
#define RANKPROBE_TESTS_CHURN_FLAKY_PROXY_H_

#include <atomic>
#include <list>
#include <string>
#include <thread>

namespace rankprobe {

class FlakyProxy {
 public:
  // Forwards to 127.0.0.1:`port`.
  explicit FlakyProxy(int port);
  ~FlakyProxy();

  int port() const { return port_; }
  // Cuts one of the open connections, chosen by `which`.
  void Cut(unsigned which) { cut_ = static_cast<int>(which % 1000000); }
  int cuts() const { return cuts_; }

 private:
  struct Connection {
    int client = -1, server = -1;
    // Bytes on their way: client to server, server to client.
    std::string up, down;
    bool dead = false;
  };

  void Run();
  void Accept();
  static void Move(int from, int to, short revents, std::string* bytes,
                   bool* dead);

  const int target_port_;
  int listen_fd_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> cut_{-1};
  std::atomic<int> cuts_{0};
  std::list<Connection> connections_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_TESTS_CHURN_FLAKY_PROXY_H_
