// SPDX-License-Identifier: Apache-2.0
// The collector's port. It accepts connections itself and hands them to gRPC,
// so that what gRPC 1.51 leaves unbounded has a bound: how many peers may be
// connected that have not proven themselves (made a call that was let through),
// for how long and with how many bytes; how many descriptors connections take;
// and, when the process holds more memory than it should, who is cut off.
//
// On a Unix socket only this process' user and root are admitted, and count as
// proven. gRPC gives all such peers one name and the kernel counts none of their
// bytes, so only the limit on the number of connections applies to them.
//
// A connection is cut by shutting its socket down, which gRPC takes for a peer
// that has gone. The agents of a job come back and resume.
//
// Ownership: one per server; the Logger outlives it. Threads: one of its own
// accepts and watches; Prove and stats from any thread; the rest from the
// thread that owns it. Failure: UNAVAILABLE when the address cannot be listened
// on; afterwards nothing is final: without descriptors it waits for some.
#ifndef RANKPROBE_COLLECTOR_SERVER_CONNECTION_GATE_H_
#define RANKPROBE_COLLECTOR_SERVER_CONNECTION_GATE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/server/listening_sockets.h"
#include "collector/server/receive_bound.h"
#include "common/base/logger.h"

namespace rankprobe {

class ConnectionGate {
 public:
  struct Options {
    // HOST:PORT (port 0 takes a free one) or a Unix socket.
    std::string listen;
    // Connections without a call that was let through: the oldest makes way.
    size_t max_unproven = 512;
    absl::Duration unproven_time = absl::Seconds(20);
    // At most 1 GiB; kept by the kernel (receive_bound.h).
    uint64_t unproven_bytes = 256 << 10;
    // All connections.
    size_t max_connections = 100000;
    // Above it unproven connections have next to nothing and callers that bring
    // much are slowed down; a quarter above it the loudest connections are cut,
    // one after the other.
    uint64_t memory_bytes = uint64_t{3} << 30;
    // What the process holds; tests bring their own.
    std::function<uint64_t()> memory_in_use;
  };
  struct Stats {
    size_t connections = 0;
    size_t unproven = 0;
    uint64_t cut = 0;
    uint64_t refused = 0;
    // Callers that are slowed down while memory is short.
    size_t slowed = 0;
  };
  // Takes a connected socket over.
  using Hand = std::function<void(int fd)>;

  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(
      Options options, const Logger* logger);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  // 0: of a Unix socket.
  int port() const { return sockets_->port(); }
  // `listen`, with the port that was taken.
  const std::string& address() const { return sockets_->address(); }

  // Begins to accept.
  void Start(Hand hand);
  // Accepts no more and watches no more; connections stay as they are.
  void Stop();
  // The peer, named as gRPC names it, has made a call that was let through.
  void Prove(absl::string_view peer);
  Stats stats() const;

 private:
  struct Connection {
    // A duplicate of gRPC's descriptor: it stays this socket's until we close
    // it, whatever gRPC does with its own.
    int fd = -1;
    std::string peer;
    int64_t accepted_ns = 0;
    // Since when it has brought as much as it may; 0: it has not.
    int64_t at_bound_ns = 0;
    bool proven = false;
    // Shut down by us; gRPC has not let go yet.
    bool cut = false;
    // Bytes received at the last look of the memory guard, or when it was
    // slowed down.
    uint64_t received_before = 0;
    // Until it is proven; afterwards while memory is short and it is loud.
    ReceiveBound bound;
  };
  // In order of acceptance.
  using Connections = std::list<Connection>;
  // Why connections are cut or refused; one line of log a second for each.
  enum class Reason {
    kTooManyUnproven,
    kUnprovenTooLong,
    kUnprovenTooLoud,
    kMemory,
    kDescriptors,
    kTooMany,
    kAnotherUser,
  };

  ConnectionGate(Options options, std::unique_ptr<ListeningSockets> sockets,
                 int epoll, int wake, const Logger* logger);

  void Run();
  // False when there are no descriptors.
  bool AcceptFrom(int listener) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a Unix socket.
  void TakeLocal(int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  void Gone(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cut(Connection* connection, Reason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CutOldestUnproven(Reason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t MostUnprovenBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsTooLoud(int64_t now_ns, Connection* connection) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void WatchUnproven(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchMemory(int64_t now_ns);
  // Bounds what loud callers may bring until the next look; cuts the loudest.
  void SlowLoud(bool cut) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogCut(Reason reason, const std::string& peer);

  const Options options_;
  const std::unique_ptr<ListeningSockets> sockets_;
  const int epoll_;
  const int wake_;
  LogLimiter log_;
  Hand hand_;
  // Given up for a moment to refuse a connection when there are no others.
  int reserve_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  // Of the watching thread.
  int64_t next_memory_look_ns_ = 0;
  int64_t next_trim_ns_ = 0;
  uint64_t in_use_before_ = 0;

  mutable absl::Mutex mutex_;
  Connections unproven_ ABSL_GUARDED_BY(mutex_);
  Connections proven_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int, Connections::iterator> by_fd_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Connections::iterator> by_peer_
      ABSL_GUARDED_BY(mutex_);
  bool tight_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t cut_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_CONNECTION_GATE_H_
