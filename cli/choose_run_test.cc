// SPDX-License-Identifier: Apache-2.0
#include "cli/client/choose_run.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// Behaves like a collector that accepts connections and does not answer.
class Silent : public v1::ControlService::Service {
  grpc::Status GetConfig(grpc::ServerContext* /*context*/,
                         const v1::GetConfigRequest* /*request*/,
                         v1::GetConfigResponse* /*response*/) override {
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
  }
};

// If the command continued, it would wait for the ranks in addition to
// --timeout.
TEST(ChooseRunTest, ACollectorThatDoesNotAnswerEndsTheCommand) {
  Silent service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  Globals globals;
  globals.collector = absl::StrCat("127.0.0.1:", port);
  const Client client(globals);
  for (const NewRun unknown :
       {NewRun::kRefuse, NewRun::kOffer, NewRun::kTake}) {
    const auto run = ChooseRun(client, "train", unknown);
    EXPECT_TRUE(absl::IsUnavailable(run.status())) << run.status();
  }
}

}  // namespace
}  // namespace rankprobe
