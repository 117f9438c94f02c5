// SPDX-License-Identifier: Apache-2.0
// A server that answers each call with messages made by a test, whatever the
// request is. Set the answers before the first call.
#ifndef RANKPROBE_COMMON_RPC_TESTING_RAW_SERVER_H_
#define RANKPROBE_COMMON_RPC_TESTING_RAW_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/io/checksum_field.h"
#include "common/rpc/checked_message.h"
#include "google/protobuf/message_lite.h"

namespace rankprobe::testing {

inline std::string Checked(const google::protobuf::MessageLite& message) {
  std::string encoded = message.SerializeAsString();
  AppendChecksum(&encoded);
  return encoded;
}

inline std::string Flipped(std::string bytes, size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

class RawServer final : public grpc::CallbackGenericService {
 public:
  RawServer() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~RawServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  // Messages of each call in turn.
  std::vector<std::vector<std::string>> answers;
  // The announced number of messages of each call in turn; absent for later
  // calls.
  std::vector<size_t> announced;
  size_t calls = 0;
  std::string address;

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(std::vector<std::string> answers)
        : answers_(std::move(answers)) {
      StartRead(&request_);
    }
    void OnReadDone(bool /*ok*/) override { Next(); }
    void OnWriteDone(bool ok) override {
      if (ok) {
        Next();
      } else {
        Finish(grpc::Status::CANCELLED);
      }
    }
    void OnDone() override { delete this; }

   private:
    void Next() {
      if (next_ == answers_.size()) return Finish(grpc::Status::OK);
      const grpc::Slice slice(answers_[next_++]);
      answer_ = grpc::ByteBuffer(&slice, 1);
      StartWrite(&answer_);
    }
    const std::vector<std::string> answers_;
    size_t next_ = 0;
    grpc::ByteBuffer request_, answer_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (calls < announced.size()) {
      context->AddTrailingMetadata(kMessagesKey,
                                   std::to_string(announced[calls]));
    }
    return new Reactor(answers.at(calls++));
  }

  std::unique_ptr<grpc::Server> server_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COMMON_RPC_TESTING_RAW_SERVER_H_
