// SPDX-License-Identifier: Apache-2.0
// Delivers what a dead process left in its spool, under that process' own
// identity, before the live one connects.
// Threads: Run from the session's worker; `wait` returns when something may
// have happened, false when the session stops.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DRAIN_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DRAIN_H_

#include <grpcpp/generic/generic_stub.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/runtime/session/bidi_stream.h"
#include "agent/runtime/session/spool.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {

// For a generic stub: frames go out as they were encoded.
inline constexpr char kUploadMethod[] = "/rankprobe.v1.AgentService/Upload";

class SpoolDrain {
 public:
  using UploadStub =
      grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::UploadAck>;

  // `wake` is called from gRPC's threads, `welcomed` once a collector has
  // answered.
  SpoolDrain(v1::AgentService::Stub* stub, UploadStub* upload_stub,
             const ChannelSecurity& security, std::string agent_version,
             std::function<void()> wake,
             std::function<bool(absl::Duration)> wait,
             std::function<void()> welcomed)
      : stub_(stub),
        upload_stub_(upload_stub),
        security_(security),
        agent_version_(std::move(agent_version)),
        wake_(std::move(wake)),
        wait_(std::move(wait)),
        welcomed_(std::move(welcomed)) {}

  // OK: everything is committed and the files are gone. CANCELLED: stopping.
  // UNAVAILABLE: try again later. Others: the collector will not have it.
  absl::Status Run(OrphanSpool* spool);

 private:
  using ControlStream = BidiStream<v1::AgentEvent, v1::Directive>;
  using UploadStream = BidiStream<grpc::ByteBuffer, v1::UploadAck>;
  absl::Status Deliver(OrphanSpool* spool, ControlStream* control,
                       UploadStream* upload, const v1::Welcome& welcome);

  v1::AgentService::Stub* const stub_;
  UploadStub* const upload_stub_;
  const ChannelSecurity& security_;
  const std::string agent_version_;
  const std::function<void()> wake_;
  const std::function<bool(absl::Duration)> wait_;
  const std::function<void()> welcomed_;
  // The last refused frame that was spoken of, and whose.
  uint64_t told_incarnation_ = 0;
  uint64_t told_refusal_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_SPOOL_DRAIN_H_
