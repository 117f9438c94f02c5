// SPDX-License-Identifier: Apache-2.0
// Takes the memory that ranks on this host keep their payloads in
// (common/rpc/lane_socket.h), so that frames may say where bytes lie in place of
// carrying them.
//
// Ownership: one per server; outlives the streams that ask it.
// Threads: one of its own; methods from any thread.
// Failure: a peer that is no session's, another user's, slow or odd is told why
// and closed, and its session goes on without. Bounded in connections, in the
// time one takes and in descriptors that are kept.
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
    // Of one session; nothing of it is mapped or allocated here.
    uint64_t max_bytes = uint64_t{1} << 40;
    // Of memory that sessions have handed over, and that somebody reads who
    // outlives his session; a descriptor each.
    size_t max_lanes = 256;
    // Connections that have not said anything yet.
    size_t max_pending = 64;
    absl::Duration patience = absl::Seconds(2);
  };

  // UNAVAILABLE where there are no such sockets.
  static absl::StatusOr<std::unique_ptr<LaneServer>> Start(
      const Options& options);
  ~LaneServer();

  // What a Welcome names.
  const std::string& name() const { return name_; }

  // A session may hand memory over from now on, once.
  void Expect(const std::string& session);
  // It has ended. Who has its memory keeps it.
  void Forget(const std::string& session);
  // What the session has handed over; null: nothing.
  std::shared_ptr<const SharedMemoryReader> Find(
      const std::string& session) const;
  // Sessions that have.
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
  // Whether it is done with.
  bool Serve(const Connection& connection);
  absl::Status Take(int socket);

  const Options options_;
  const std::string name_;
  const int listening_;
  // Readable once the thread is to end.
  const int stopping_;
  // Of the thread.
  std::vector<Connection> connections_;
  bool full_ = false;

  mutable absl::Mutex mutex_;
  // Null: it has handed nothing over yet.
  std::map<std::string, std::shared_ptr<const SharedMemoryReader>> sessions_
      ABSL_GUARDED_BY(mutex_);
  size_t lanes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Descriptors that are kept, whoever keeps them.
  const std::shared_ptr<std::atomic<size_t>> kept_ =
      std::make_shared<std::atomic<size_t>>(0);
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_LANE_SERVER_H_
