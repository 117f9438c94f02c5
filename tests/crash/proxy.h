// SPDX-License-Identifier: Apache-2.0
// A TCP proxy that misbehaves on command: closes connections, passes half of
// what it has and closes, holds everything back for a while, or flips bits.
// Threads: one for accepting and one for each connection; all methods may be
// called from any thread.
#ifndef RANKPROBE_TESTS_CRASH_PROXY_H_
#define RANKPROBE_TESTS_CRASH_PROXY_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

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
  // From now on a bit flips in each direction once in so many bytes on average, at
  // places that the seed decides on; 0: none. Flips are in what HTTP/2's frames of
  // data carry: gRPC 1.51 ends its own process over some frames of headers that
  // are none.
  void Flip(uint64_t up_bytes, uint64_t down_bytes, uint64_t seed);
  uint64_t flips() const { return flips_; }

 private:
  void Accept();
  void Serve(int client);
  // Where one direction of a connection is among HTTP/2's frames.
  struct Framing {
    // Of the preface or of what a frame carries.
    size_t left = 0;
    bool is_data = false;
    std::array<unsigned char, 9> header{};
    size_t header_bytes = 0;
  };
  // Of data that passes: side 0 comes from the client.
  void Damage(int side, Framing* framing, absl::Span<char> data);
  void DamageData(size_t side, absl::Span<char> data)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(flip_mutex_);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> cuts_{0};
  std::atomic<uint64_t> truncations_{0};
  std::atomic<int64_t> stalled_until_ns_{0};
  std::atomic<uint64_t> flips_{0};
  absl::Mutex flip_mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(flip_mutex_);
  // By side: bytes between two flips, and until the next.
  std::array<uint64_t, 2> flip_bytes_ ABSL_GUARDED_BY(flip_mutex_){};
  std::array<uint64_t, 2> until_flip_ ABSL_GUARDED_BY(flip_mutex_){};
  absl::Mutex mutex_;
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_PROXY_H_
