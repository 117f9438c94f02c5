// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/damaged_answers.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/monotonic_event.h"
#include "common/rpc/grpc_channel.h"
#include "common/rpc/testing/raw_server.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/agent.grpc.pb.h"
#include "rankprobe/v1/archive.grpc.pb.h"
#include "rankprobe/v1/control.grpc.pb.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {
namespace {

using testing::Checked;
using testing::Flipped;
using testing::RawServer;

std::shared_ptr<grpc::Channel> ChannelTo(const RawServer& server) {
  return MakeChannel(server.address, {}, grpc::ChannelArguments());
}

v1::ListRunsResponse OneRun() {
  v1::ListRunsResponse runs;
  runs.add_runs()->set_run("bert");
  return runs;
}

TEST(DamagedAnswersTest, EachSingleFlipOfAnAnswerIsFound) {
  RawServer server;
  const auto stub = v1::ArchiveService::NewStub(ChannelTo(server));
  const std::string whole = Checked(OneRun());
  server.answers.push_back({whole});
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit)
    server.answers.push_back({Flipped(whole, bit)});
  server.answers.push_back({whole});
  const auto ask = [&](v1::ListRunsResponse* runs) {
    grpc::ClientContext context;
    return stub->ListRuns(&context, v1::ListRunsRequest(), runs);
  };
  v1::ListRunsResponse runs;
  ASSERT_TRUE(ask(&runs).ok());
  EXPECT_EQ(runs.SerializeAsString(), OneRun().SerializeAsString());
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    v1::ListRunsResponse damaged;
    const grpc::Status status = ask(&damaged);
    ASSERT_TRUE(AnswerWasDamaged(status)) << bit << status.error_message();
    EXPECT_EQ(damaged.runs_size(), 0);
  }
  EXPECT_TRUE(ask(&runs).ok());
}

TEST(DamagedAnswersTest, OneInAStreamEndsIt) {
  RawServer server;
  const auto stub = v1::ArchiveService::NewStub(ChannelTo(server));
  v1::StepLedger step;
  step.set_step(7);
  const std::string whole = Checked(step);
  server.answers.push_back({whole, Flipped(whole, 20), whole});
  grpc::ClientContext context;
  const auto reader = stub->GetLedger(&context, v1::GetLedgerRequest());
  v1::StepLedger read;
  int count = 0;
  while (reader->Read(&read)) ++count;
  EXPECT_EQ(count, 1);
  EXPECT_TRUE(AnswerWasDamaged(reader->Finish()));
}

TEST(DamagedAnswersTest, WhatOnlyReadsIsAskedAgainOnce) {
  RawServer server;
  const auto stub = v1::ArchiveService::NewStub(ChannelTo(server));
  const std::string whole = Checked(OneRun());
  const std::string damaged = Flipped(whole, 3);
  server.answers = {{damaged}, {whole}, {damaged}, {damaged}, {damaged}};
  v1::ListRunsResponse runs;
  const auto ask = [&] {
    grpc::ClientContext context;
    return stub->ListRuns(&context, v1::ListRunsRequest(), &runs);
  };
  EXPECT_TRUE(AskAgain(ask).ok());
  EXPECT_EQ(runs.runs_size(), 1);
  EXPECT_TRUE(AnswerWasDamaged(AskAgain(ask)));
  EXPECT_EQ(server.calls, 4u);
  // The call may have been executed.
  EXPECT_TRUE(AnswerWasDamaged(ActAgain(ask)));
  EXPECT_EQ(server.calls, 5u);
}

class Runs final : public v1::ArchiveService::CallbackService {
 public:
  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override {
    asked.push_back(request->after_run());
    *response = OneRun();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::vector<std::string> asked;
};

TEST(DamagedAnswersTest, ADamagedRequestIsNotServed) {
  Runs runs;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&runs);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::ListRunsResponse> stub(
      MakeChannel("127.0.0.1:" + std::to_string(port), {},
                  grpc::ChannelArguments()));
  const auto ask = [&](const std::string& request) {
    grpc::ClientContext context;
    const grpc::Slice slice(request);
    const grpc::ByteBuffer bytes(&slice, 1);
    v1::ListRunsResponse answer;
    MonotonicEvent done;
    grpc::Status status;
    stub.UnaryCall(&context, "/rankprobe.v1.ArchiveService/ListRuns", {},
                   &bytes, &answer, [&](grpc::Status said) {
                     status = std::move(said);
                     done.Set();
                   });
    EXPECT_TRUE(done.WaitFor(absl::Seconds(30)));
    return status;
  };
  v1::ListRunsRequest request;
  request.set_after_run("bert");
  const std::string whole = Checked(request);
  EXPECT_TRUE(ask(whole).ok());
  EXPECT_EQ(runs.asked, std::vector<std::string>(1, "bert"));
  EXPECT_TRUE(RequestMayBeDamaged(ask(request.SerializeAsString())));
  EXPECT_TRUE(RequestMayBeDamaged(ask("")));
  const size_t content = 8 * (whole.size() - kChecksumFieldBytes);
  for (size_t bit = 0; bit < content; ++bit)
    EXPECT_TRUE(RequestMayBeDamaged(ask(Flipped(whole, bit)))) << bit;
  EXPECT_EQ(runs.asked.size(), 1u);
  server->Shutdown(std::chrono::system_clock::now());
}

TEST(DamagedAnswersTest, EachMethodIsChecked) {
  const std::set<std::string> listed = {
#define RP_NAME(type) "rankprobe.v1." #type,
      RANKPROBE_CHECKED_STREAMS(RP_NAME) RANKPROBE_CHECKED_REQUESTS(RP_NAME)
          RANKPROBE_CHECKED_ANSWERS(RP_NAME)
#undef RP_NAME
  };
  std::set<std::string> used;
  for (const google::protobuf::FileDescriptor* file :
       {v1::AgentEvent::descriptor()->file(),
        v1::ListRunsRequest::descriptor()->file(),
        v1::GetConfigRequest::descriptor()->file(),
        v1::LeafReport::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        used.insert(file->service(i)->method(j)->input_type()->full_name());
        used.insert(file->service(i)->method(j)->output_type()->full_name());
      }
    }
  }
  EXPECT_EQ(listed, used);
}

}  // namespace
}  // namespace rankprobe
