// SPDX-License-Identifier: Apache-2.0
// Receiver of the memory in which ranks on this host keep their payloads
// (common/rpc/lane_socket.h), so that frames may carry the place of bytes
// instead of the bytes.
//
// Ownership: one per server; outlives the streams that use it.
// Threads: one of its own; methods from any thread.
// Failure: a peer that belongs to no session, is of another user, slow or
// invalid gets the reason and is closed, and its session continues without
// shared memory. Limits: connections, the time that each takes, and
// descriptors.
#ifndef RANKPROBE_COLLECTOR_RPC_LANE_SERVER_H_
#define RANKPROBE_COLLECTOR_RPC_LANE_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/monotonic_time.h"
#include "common/io/shared_memory.h"

namespace rankprobe {

class LaneServer {
 public:
  struct Options {
    // Limit for the memory of one session; no part of it is mapped or allocated
    // here.
    uint64_t max_bytes = uint64_t{1} << 40;
    // Limit for memory that is kept, including that of ended sessions that is
    // still being read; each takes a descriptor.
    size_t max_lanes = 256;
    // Limit for connections that have not sent anything yet.
    size_t max_pending = 64;
    absl::Duration patience = absl::Seconds(2);
  };

  // UNAVAILABLE if the system has no such sockets.
  static absl::StatusOr<std::unique_ptr<LaneServer>> Start(
      const Options& options);
  ~LaneServer();

  // Returns the name that a Welcome contains.
  const std::string& name() const { return name_; }

  // Allows a session to share memory once.
  void Expect(const std::string& session);
  // Called when the session has ended. Holders of its memory keep it.
  void Forget(const std::string& session);
  // Returns the memory that the session shares; null if it shares none.
  std::shared_ptr<const SharedMemoryReader> Find(
      const std::string& session) const;
  // Returns the number of sessions that share memory.
  size_t lanes() const;

 private:
  struct Connection {
    int fd = -1;
    MonotonicTime until;
  };

  LaneServer(const Options& options, std::string name, int listening,
             int stopping);
  void Run();
  void Accept();
  // Returns whether the connection is finished.
  bool Serve(const Connection& connection);
  absl::Status Take(int socket);

  const Options options_;
  const std::string name_;
  const int listening_;
  // Readable once the thread has to end.
  const int stopping_;
  // Used by the thread only.
  std::vector<Connection> connections_;
  bool full_ = false;

  mutable absl::Mutex mutex_;
  // Null if the session has not shared memory yet.
  std::map<std::string, std::shared_ptr<const SharedMemoryReader>> sessions_
      ABSL_GUARDED_BY(mutex_);
  size_t lanes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of open descriptors, including those that only streams still hold.
  const std::shared_ptr<std::atomic<size_t>> kept_ =
      std::make_shared<std::atomic<size_t>>(0);
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_LANE_SERVER_H_
