// SPDX-License-Identifier: Apache-2.0
// Finds the collector that a process connects to: a root at the given address
// names one of its leaves (docs/scale.md); any other collector does not
// implement the request, and the process connects to it.
//
// Ownership: the channel is shared, the rest outlives it. Threads: Find and the
// other methods from one thread; it waits by `wait`, which returns when
// something may have happened (`wake` was called, from gRPC's threads) and is
// false when the caller must stop.
// Failure: see Find; nothing is kept from a failed request.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_FINDER_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_FINDER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/runtime/session/collector_channel.h"
#include "common/base/monotonic_time.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class CollectorFinder {
 public:
  CollectorFinder(std::shared_ptr<CollectorChannel> channel,
                  const ChannelSecurity& security, std::string replica,
                  std::function<void()> wake,
                  std::function<bool(absl::Duration)> wait,
                  absl::Duration patience = kPatience)
      : security_(security),
        replica_(std::move(replica)),
        wake_(std::move(wake)),
        wait_(std::move(wait)),
        patience_(patience),
        channel_(std::move(channel)) {}

  // Returns the address of the leaf to connect to. It is empty if the named
  // address is not a root or does not answer the request: connect to that
  // address. CANCELLED: the caller must stop. UNAVAILABLE: a root that has no
  // leaf now or does not answer.
  absl::StatusOr<std::string> Find(const v1::Identity& identity);

  // Sends further requests on `channel`.
  void UseChannel(std::shared_ptr<CollectorChannel> channel) {
    channel_ = std::move(channel);
  }

  // Reports whether the address that Find returned last was reached. A leaf
  // that was not reached for kPatience is reported to the root as failed until
  // another one is reached.
  void NoteReached();
  void NoteNotReached();

  // Whether the named address is a root.
  bool is_root() const { return is_root_; }

  // Ranks of a failed leaf must reach another one within ten seconds. This is
  // their share of it; the rest is the time that the root waits for the leaf to
  // return.
  static constexpr absl::Duration kPatience = absl::Seconds(3);

 private:
  struct Question;

  const ChannelSecurity& security_;
  const std::string replica_;
  const std::function<void()> wake_;
  const std::function<bool(absl::Duration)> wait_;
  const absl::Duration patience_;
  std::shared_ptr<CollectorChannel> channel_;
  // The named collector does not implement the request.
  bool is_plain_ = false;
  bool is_root_ = false;
  // The last answer.
  std::string leaf_, address_;
  // When the connection to leaf_ began to fail; kNeverFails while it does not.
  MonotonicTime failing_since_ = kNeverFails;
  std::vector<std::string> failed_;

  static constexpr MonotonicTime kNeverFails = MonotonicTime::max();
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_FINDER_H_
