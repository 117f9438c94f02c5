// SPDX-License-Identifier: Apache-2.0
// Delivery to a collector of frames that killed processes left in a spool
// directory, without a session of its own: for `rankprobe deliver`, and through
// it for a private collector whose user was killed.
// Threads: the caller's, which waits for the network until the deadline.
// Failure: files that cannot be delivered stay in place and are reported.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DELIVERY_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DELIVERY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

struct SpoolDeliveryOptions {
  std::string directory;
  // host:port
  std::string collector;
  ChannelSecurity security;
  // For the complete delivery.
  absl::Duration deadline = absl::InfiniteDuration();
  // How long to try to reach a collector that does not answer.
  absl::Duration patience = absl::Seconds(30);
};

struct SpoolDelivery {
  std::vector<v1::Identity> delivered;
  struct Left {
    v1::Identity identity;
    std::string reason;
  };
  std::vector<Left> left;
  // Spools that other users made or can change; they are not opened.
  int passed_over = 0;
};

// Returns NOT_FOUND if there is no such directory, UNAVAILABLE if no collector
// answers.
absl::StatusOr<SpoolDelivery> DeliverSpools(
    const SpoolDeliveryOptions& options);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DELIVERY_H_
