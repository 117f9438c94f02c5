// SPDX-License-Identifier: Apache-2.0
// The least a server can do: takes the upload stream, parses the frames and
// drops them. What rankprobed is measured against.
//   bench_null_sink PORT_FILE      ends on SIGTERM
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>
#include <pthread.h>

#include <csignal>
#include <fstream>
#include <memory>

#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {
namespace {

class Drop : public grpc::ServerBidiReactor<v1::UploadFrame, v1::UploadAck> {
 public:
  Drop() { StartRead(&frame_); }
  void OnReadDone(bool ok) override {
    if (ok) return StartRead(&frame_);
    ack_.set_committed(frame_.sequence());
    StartWriteAndFinish(&ack_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  v1::UploadFrame frame_;
  v1::UploadAck ack_;
};

class NullSink : public v1::AgentService::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::UploadFrame, v1::UploadAck>* Upload(
      grpc::CallbackServerContext*) override {
    return new Drop;
  }
};

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  rankprobe::NullSink service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::ofstream(argv[1]) << port << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown();
  return 0;
}
