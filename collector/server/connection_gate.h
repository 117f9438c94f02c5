// SPDX-License-Identifier: Apache-2.0
// The collector's port. It accepts connections itself and passes them to gRPC,
// to limit what gRPC 1.51 leaves unlimited: how many peers may be connected
// that have not proven themselves (made an authorized call), for how long and
// with how many bytes; how many descriptors connections take; and which
// connections are closed when the process uses too much memory.
//
// On a Unix socket only this process' user and root are admitted, and count as
// proven. gRPC gives all such peers one name and the kernel does not count
// their bytes, so only the limit on the number of connections applies to them.
//
// A connection is closed by shutting its socket down, which gRPC treats as a
// disconnected peer. The agents of a job reconnect and resume.
//
// Ownership: one per server; the Logger outlives it. Threads: one of its own
// accepts and watches; Prove and stats from any thread; the rest from the
// owner's thread. Failure: UNAVAILABLE if it cannot listen on the address;
// later errors are not final: without descriptors it waits until some are free.
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
    // Limit for connections without an authorized call; the oldest is closed.
    size_t max_unproven = 512;
    absl::Duration unproven_time = absl::Seconds(20);
    // At most 1 GiB; enforced by the kernel (receive_bound.h).
    uint64_t unproven_bytes = 256 << 10;
    // Limit for all connections.
    size_t max_connections = 100000;
    // Above it unproven connections may send almost nothing and clients that
    // send much data are slowed down; a quarter above it the connections that
    // send most are closed, one after another.
    uint64_t memory_bytes = uint64_t{3} << 30;
    // Memory used by the process; tests inject another function.
    std::function<uint64_t()> memory_in_use;
  };
  struct Stats {
    size_t connections = 0;
    size_t unproven = 0;
    uint64_t cut = 0;
    uint64_t refused = 0;
    // Clients that are slowed down while memory is short.
    size_t slowed = 0;
  };
  // Takes ownership of a connected socket.
  using Hand = std::function<void(int fd)>;

  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(
      Options options, const Logger* logger);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  // 0 for a Unix socket.
  int port() const { return sockets_->port(); }
  // `listen`, with the port that was taken.
  const std::string& address() const { return sockets_->address(); }

  // Begins to accept.
  void Start(Hand hand);
  // Stops accepting and watching; connections stay as they are.
  void Stop();
  // Records that the peer, with gRPC's name for it, has made an authorized
  // call.
  void Prove(absl::string_view peer);
  Stats stats() const;

 private:
  struct Connection {
    // A duplicate of gRPC's descriptor: it refers to this socket until we close
    // it, whatever gRPC does with its own.
    int fd = -1;
    std::string peer;
    int64_t accepted_ns = 0;
    // Since when it has sent as much as it may; 0: it has not.
    int64_t at_bound_ns = 0;
    bool proven = false;
    // We have shut it down; gRPC has not closed it yet.
    bool cut = false;
    // Bytes received at the last check of the memory guard, or when it was
    // slowed down.
    uint64_t received_before = 0;
    // Set until it is proven; later while memory is short and it sends much.
    ReceiveBound bound;
  };
  // In order of acceptance.
  using Connections = std::list<Connection>;
  // Why connections are closed or refused; each reason is logged at most once a
  // second.
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
  // Returns false if there are no descriptors.
  bool AcceptFrom(int listener) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for a Unix socket.
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
  // Limits what clients that send much may send until the next check. With
  // `cut`, closes the one that sends most.
  void SlowLoud(bool cut) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogCut(Reason reason, const std::string& peer);

  const Options options_;
  const std::unique_ptr<ListeningSockets> sockets_;
  const int epoll_;
  const int wake_;
  LogLimiter log_;
  Hand hand_;
  // Closed for a moment to accept and refuse a connection when no other
  // descriptor is free.
  int reserve_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  // Used by the watching thread only.
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
