// SPDX-License-Identifier: Apache-2.0
// A rank that speaks the protocol by hand.
#ifndef RANKPROBE_TESTS_CRASH_RAW_AGENT_H_
#define RANKPROBE_TESTS_CRASH_RAW_AGENT_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe::crash {

class RawAgent {
 public:
  RawAgent(const std::string& address, int64_t rank,
           const std::string& run = "hostile")
      : stub_(v1::AgentService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    session_ = stub_->Session(&session_context_);
    v1::AgentEvent event;
    v1::Identity* const identity = event.mutable_hello()->mutable_identity();
    identity->set_run(run);
    identity->set_rank(rank);
    identity->set_incarnation(1000 + static_cast<uint64_t>(rank));
    event.mutable_hello()->set_protocol(1);
    event.mutable_hello()->set_incarnation_secret(std::string(32, 's'));
    v1::Directive directive;
    EXPECT_TRUE(session_->Write(event) && session_->Read(&directive));
    upload_ = stub_->Upload(&upload_context_);
    v1::UploadFrame open;
    open.mutable_open()->set_session_id(directive.welcome().session_id());
    EXPECT_TRUE(upload_->Write(open));
    v1::UploadAck ack;
    EXPECT_TRUE(upload_->Read(&ack));
  }
  ~RawAgent() {
    session_context_.TryCancel();
    upload_context_.TryCancel();
  }
  bool Send(const v1::UploadFrame& frame) { return upload_->Write(frame); }
  bool Read(v1::UploadAck* ack) { return upload_->Read(ack); }
  // The status the collector ends the stream with.
  grpc::Status End() {
    v1::UploadAck ack;
    while (upload_->Read(&ack)) {
    }
    return upload_->Finish();
  }
  void HalfClose() { upload_->WritesDone(); }

 private:
  const std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext session_context_, upload_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentEvent, v1::Directive>>
      session_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::UploadFrame, v1::UploadAck>>
      upload_;
};

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_RAW_AGENT_H_
