// SPDX-License-Identifier: Apache-2.0
// Reference to gRPC's library that is dropped in bounded time. The last user of
// the library ends it and waits for its timer threads; gRPC 1.51 counts a
// thread that could not be started (RLIMIT_AS, RLIMIT_NPROC) and then waits for
// ever. Held by owners of a channel in a user's program, and declared before
// the channel, so that the channel is never the last user. Thread-safe; a
// forked child of its owner, where the threads are missing, keeps the
// reference.
#ifndef RANKPROBE_COMMON_RPC_GRPC_REFERENCE_H_
#define RANKPROBE_COMMON_RPC_GRPC_REFERENCE_H_

#include "absl/status/status.h"
#include "common/base/fork_guard.h"

namespace rankprobe {

class GrpcReference {
 public:
  GrpcReference();
  // Returns within 2 s; after that a thread of its own continues to wait.
  ~GrpcReference();
  GrpcReference(const GrpcReference&) = delete;
  GrpcReference& operator=(const GrpcReference&) = delete;

  // UNAVAILABLE while gRPC is shutting down: any use of it would wait as well.
  static absl::Status CheckUsable();

 private:
  const ForkGuard fork_guard_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_GRPC_REFERENCE_H_
