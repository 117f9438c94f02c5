// SPDX-License-Identifier: Apache-2.0
// Gateway between JSON over HTTP and the collector's services: the page's API.
// In `rankprobe view` it calls the collector as the user who started it, like
// any command; the collector decides what that user may do and what is audited.
// In the collector itself it acts as the caller of each request, whose token it
// checks by the collector's rules before every call.
//
//   POST /api/v1/{Service}/{Method}   the request as proto3 JSON
//
// A unary method returns the response as JSON, a streaming method returns a
// line of JSON for each message as it arrives; QueryGrid with `packed` returns
// the bytes of grid_bytes.h. An error is {"error":{"code", "message"}} with the
// HTTP status of its code; after the first line it is the last line. Only the
// methods of a list in gateway.cc can be called. Thread-safe.
#ifndef RANKPROBE_WEB_GATEWAY_GATEWAY_H_
#define RANKPROBE_WEB_GATEWAY_GATEWAY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/archive.grpc.pb.h"
#include "rankprobe/v1/control.grpc.pb.h"
#include "web/gateway/caller_check.h"
#include "web/gateway/turnstile.h"
#include "web/http/http_message.h"

namespace rankprobe {

struct GatewayOptions {
  // HOST:PORT. If empty, there is no collector, and every call fails with that
  // message.
  std::string collector;
  ChannelSecurity security;
  // Inside the collector, set both or none: the channel to its services, which
  // does not check callers, and the check of callers. `callers` outlives the
  // gateway. The page shows `collector`.
  std::shared_ptr<grpc::Channel> channel;
  const CallerCheck* callers = nullptr;
  // Deadline of each call; calls that read records or wait for ranks have more
  // time.
  double timeout_seconds = 30;
  // Largest number of concurrent conversions from and to JSON, which is most of
  // the cost of calls; 0 means no limit.
  size_t most_converting = 0;
  // Limit of one response, as JSON; beyond it, the call fails with
  // RESOURCE_EXHAUSTED.
  size_t max_answer_bytes = 64 << 20;
};

class Gateway {
 public:
  explicit Gateway(GatewayOptions options);

  // Answers a request for a method such as "ArchiveService/ListRuns". Blocks
  // until the answer is complete, or until the client has disconnected, which
  // cancels its call.
  void Answer(absl::string_view method, const HttpRequest& request,
              HttpReply* reply) const;
  // Returns OK if the holder of `token` may read records.
  absl::Status MayRead(absl::string_view token) const;
  // Returns OK if the holder of `token` may read bytes of tensors.
  absl::Status MayReadTensors(absl::string_view token) const;
  // Reads the bytes of one payload, for an answer that is computed from them.
  // Ends early if the client of `reply` disconnects.
  absl::Status ReadTensor(const v1::GetTensorRequest& request,
                          const HttpRequest& asked, HttpReply* reply,
                          std::string* bytes) const;
  const CallerCheck* callers() const { return options_.callers; }

  // Returns the names of the methods: "ControlService/GetConfig" and so on.
  static std::vector<std::string> Methods();

 private:
  struct Row;
  class Call;
  // Returns FAILED_PRECONDITION if there is no collector.
  absl::Status CheckCollector() const;
  absl::Status MayCall(absl::string_view token, absl::string_view name) const;
  static const std::vector<Row>& Rows();

  const GatewayOptions options_;
  mutable Turnstile converting_;
  std::unique_ptr<v1::ControlService::Stub> control_;
  std::unique_ptr<v1::ArchiveService::Stub> archive_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_GATEWAY_H_
