// SPDX-License-Identifier: Apache-2.0
// A TCP proxy that misbehaves on command: closes connections, passes half of
// what it has and closes, or holds everything back for a while.
// Threads: one for accepting and one for each connection; all methods may be
// called from any thread.
#ifndef RANKPROBE_TESTS_CRASH_PROXY_H_
#define RANKPROBE_TESTS_CRASH_PROXY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rankprobe::crash {

class Proxy {
 public:
  // Listens on a free port of 127.0.0.1 and passes on to `target_port` there.
  explicit Proxy(int target_port);
  ~Proxy();

  int port() const { return port_; }

  // Every connection ends now.
  void Cut() { ++cuts_; }
  // Every connection passes half of the next bytes it gets and ends.
  void Truncate() { ++truncations_; }
  // Nothing passes for this long; connections stay open.
  void Stall(absl::Duration duration);

 private:
  void Accept();
  void Serve(int client);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> cuts_{0};
  std::atomic<uint64_t> truncations_{0};
  std::atomic<int64_t> stalled_until_ns_{0};
  absl::Mutex mutex_;
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_PROXY_H_
