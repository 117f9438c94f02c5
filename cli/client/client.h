// SPDX-License-Identifier: Apache-2.0
// The connection of one CLI call.
#ifndef RANKPROBE_CLI_CLIENT_CLIENT_H_
#define RANKPROBE_CLI_CLIENT_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client/away_notes.h"
#include "common/base/status_macros.h"
#include "common/rpc/damaged_answers.h"
#include "common/rpc/grpc_channel.h"
#include "rankprobe/v1/archive.grpc.pb.h"
#include "rankprobe/v1/control.grpc.pb.h"

namespace rankprobe {

// Flags that all verbs share.
struct Globals {
  std::string collector = "127.0.0.1:7411";
  // RANKPROBE_COLLECTOR was set, to whatever address.
  bool collector_in_environment = false;
  bool json = false;
  double timeout_seconds = 30;
  ChannelSecurityFiles files;
  // Read from `files` before a verb runs.
  ChannelSecurity security;
  // An object store to read instead of a collector; `local_reader` is then the
  // channel to its archive service.
  std::string object_store;
  std::shared_ptr<grpc::Channel> local_reader;
};

using ControlStub = v1::ControlService::Stub;
using ArchiveStub = v1::ArchiveService::Stub;

class Client {
 public:
  template <typename Stub, typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&,
                                        Response*);

  explicit Client(const Globals& globals) : globals_(globals) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(64 << 20);
    PingWhileCalling(
        kPingSilence,
        std::min(kPingPatience, absl::Seconds(globals.timeout_seconds)),
        &arguments);
    channel_ = globals.local_reader != nullptr
                   ? globals.local_reader
                   : MakeChannel(globals.collector, globals.security, arguments,
                                 AwayNotes());
    control = v1::ControlService::NewStub(channel_);
    archive = v1::ArchiveService::NewStub(channel_);
  }

  // Sets token and deadline. `extra_seconds` is added to --timeout, for calls
  // that wait on purpose.
  void Prepare(grpc::ClientContext* context, double extra_seconds = 0) const {
    AddToken(globals_.security, context);
    context->set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(
            1000 * (globals_.timeout_seconds + extra_seconds))));
  }

  // Called before a call with a large message: a collector accepts at most 256
  // KiB from a connection whose first call is not complete.
  void Introduce(size_t message_bytes) const {
    if (message_bytes < (64 << 10)) return;
    grpc::ClientContext context;
    Prepare(&context);
    v1::GetConfigResponse ignored;
    // The answer does not matter: the next call reports errors.
    (void)control->GetConfig(&context, v1::GetConfigRequest(), &ignored);
  }

  // Makes `call(&context)`, which must only read, and repeats it if something
  // was damaged in transit.
  template <typename Call>
  absl::Status Ask(const Call& call) const {
    return ToStatus(AskAgain([&] {
      grpc::ClientContext context;
      Prepare(&context);
      return call(&context);
    }));
  }
  // What such a method of the collector answers.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Ask(Method<Stub, Request, Response> method,
                               const Request& request) const {
    Response response;
    RP_RETURN_IF_ERROR(Ask([&](grpc::ClientContext* context) {
      return (StubOf<Stub>()->*method)(context, request, &response);
    }));
    return response;
  }
  // What one answers that changes something: once more where the request was
  // damaged.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Act(Method<Stub, Request, Response> method,
                               const Request& request,
                               double extra_seconds = 0) const {
    Response response;
    RP_RETURN_IF_ERROR(ToStatus(ActAgain([&] {
      grpc::ClientContext context;
      Prepare(&context, extra_seconds);
      return (StubOf<Stub>()->*method)(&context, request, &response);
    })));
    return response;
  }

  // Returns the connected and the disconnected ranks of the run, or of all runs
  // if `run` is empty.
  absl::StatusOr<v1::ListAgentsResponse> ListAgents(
      const std::string& run) const;
  // Returns all recorded steps of the run, which may take many calls, or
  // NOT_FOUND.
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run) const;

  // Converts the status into one with rankprobe's message and, if known, a
  // remedy.
  absl::Status ToStatus(const grpc::Status& status) const;

  std::unique_ptr<ControlStub> control;
  std::unique_ptr<ArchiveStub> archive;

 private:
  template <typename Stub>
  Stub* StubOf() const {
    if constexpr (std::is_same_v<Stub, ControlStub>) {
      return control.get();
    } else {
      return archive.get();
    }
  }

  const Globals globals_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_CLIENT_H_
