// SPDX-License-Identifier: Apache-2.0
// Delivery of frames that a killed process left in its spool, under the
// identity of that process, before the new process connects.
// Threads: Run from the session's worker; `wait` returns when something may
// have happened, false when the session stops.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DRAIN_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DRAIN_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/frame_suspect.h"
#include "agent/runtime/session/bidi_stream.h"
#include "agent/runtime/session/collector_channel.h"
#include "agent/runtime/session/spool.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class SpoolDrain {
 public:
  // `wake` is called from gRPC's threads, `welcomed` once a collector has
  // answered.
  SpoolDrain(const ChannelSecurity& security, std::string agent_version,
             std::function<void()> wake,
             std::function<bool(absl::Duration)> wait,
             std::function<void()> welcomed)
      : security_(security),
        agent_version_(std::move(agent_version)),
        wake_(std::move(wake)),
        wait_(std::move(wait)),
        welcomed_(std::move(welcomed)) {}

  // Sends the frames of `spool`. OK: everything is committed and the files are
  // removed. CANCELLED: stopping. UNAVAILABLE: try again later, with the same
  // spool. Other errors: the collector will not accept it.
  absl::Status Run(CollectorChannel* channel, OrphanSpool* spool);

 private:
  using ControlStream = BidiStream<v1::AgentEvent, v1::Directive>;
  using UploadStream = BidiStream<grpc::ByteBuffer, v1::UploadAck>;
  absl::Status Deliver(OrphanSpool* spool, ControlStream* control,
                       UploadStream* upload, const v1::Welcome& welcome);
  static constexpr absl::Duration kTick = absl::Milliseconds(500);
  void SayGoodbye(ControlStream* control);

  const ChannelSecurity& security_;
  const std::string agent_version_;
  const std::function<void()> wake_;
  const std::function<bool(absl::Duration)> wait_;
  const std::function<void()> welcomed_;
  // The last refused frame that was reported.
  uint64_t told_refusal_ = 0;
  FrameSuspect suspect_;
  // The frame that was given up because it was damaged too often; 0 if none
  // was.
  uint64_t given_up_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DRAIN_H_
