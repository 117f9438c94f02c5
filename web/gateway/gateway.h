// SPDX-License-Identifier: Apache-2.0
// From JSON over HTTP to the collector's services and back: the page's API. It
// speaks to the collector as the user who started it, like any command: what
// that user may do, and what of it is audited, is the collector's decision.
//
//   POST /api/v1/{Service}/{Method}   the request as proto3 JSON
//
// A unary method answers with the response as JSON, a streaming one with a line
// of JSON for each message, as it comes. A failure is {"error":{"code",
// "message"}} with the HTTP status of its code; after the first line it is the
// last line. Only methods of a list here are reachable. Thread-safe.
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
#include "web/http/http_message.h"

namespace rankprobe {

struct GatewayOptions {
  // HOST:PORT. Empty: there is none, and every call says so.
  std::string collector;
  ChannelSecurity security;
  // For each call; those that go through records or wait for ranks have more.
  double timeout_seconds = 30;
  // Of one response, as JSON. RESOURCE_EXHAUSTED beyond.
  size_t max_answer_bytes = 64 << 20;
};

class Gateway {
 public:
  explicit Gateway(GatewayOptions options);

  // Answers a request for "ArchiveService/ListRuns". Blocks until the answer is
  // whole or the client has gone; its call is cancelled then.
  void Answer(absl::string_view method, const std::string& body,
              HttpReply* reply) const;
  // The bytes of one payload, for whoever answers with something made of them.
  // Ends early when the client of `reply` goes.
  absl::Status ReadTensor(const v1::GetTensorRequest& request, HttpReply* reply,
                          std::string* bytes) const;
  // {"version":"0.1.0","collector":"127.0.0.1:7411","root":"dumps"}
  std::string AboutJson(absl::string_view root) const;

  // "ControlService/GetConfig" and so on.
  static std::vector<std::string> Methods();

 private:
  struct Row;
  class Call;
  // FAILED_PRECONDITION: there is none to call.
  absl::Status CheckCollector() const;
  static const std::vector<Row>& Rows();

  const GatewayOptions options_;
  std::unique_ptr<v1::ControlService::Stub> control_;
  std::unique_ptr<v1::ArchiveService::Stub> archive_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_GATEWAY_H_
