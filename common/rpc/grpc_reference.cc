// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/grpc_reference.h"

#include <grpc/grpc.h>
#include <pthread.h>

#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "common/base/blocked_signals.h"
#include "common/base/monotonic_event.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);

// Number of threads that shut the library down. Global, like the state of the
// library.
std::atomic<int> ending{0};

using Ended = std::shared_ptr<MonotonicEvent>;

void* End(void* argument) {
  const std::unique_ptr<Ended> ended(static_cast<Ended*>(argument));
  grpc_shutdown();
  --ending;
  (*ended)->Set();
  return nullptr;
}

}  // namespace

GrpcReference::GrpcReference() { grpc_init(); }

GrpcReference::~GrpcReference() {
  if (fork_guard_.InChild()) return;
  const auto ended = std::make_shared<MonotonicEvent>();
  auto argument = std::make_unique<Ended>(ended);
  ++ending;
  pthread_t thread;
  const BlockedSignals blocked;
  if (pthread_create(&thread, nullptr, End, argument.get()) != 0) {
    // No thread can be started. In this state a wait here might never end, so
    // the library stays loaded.
    --ending;
    return;
  }
  (void)argument.release();  // End() owns it.
  pthread_detach(thread);
  ended->WaitFor(kPatience);
}

absl::Status GrpcReference::CheckUsable() {
  if (ending.load() == 0) return absl::OkStatus();
  return absl::UnavailableError(
      "gRPC is still ending after an earlier session of this process, whose "
      "threads could not be started (RLIMIT_AS or RLIMIT_NPROC)");
}

}  // namespace rankprobe
