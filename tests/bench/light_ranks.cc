// SPDX-License-Identifier: Apache-2.0
// Very many ranks in one process, as bench_ranks has them, each with a stream of its
// own to a real collector and nothing else: no thread, no queue, no upload.
//   bench_light HOST:PORT RUN RANKS STEP_MS
// Says and takes what bench_ranks does: "connected SECONDS"; the line "step" begins
// stepping, all ranks together once in STEP_MS; end of file ends it.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/monotonic_event.h"
#include "common/base/monotonic_time.h"
#include "common/rpc/grpc_channel.h"
#include "rankprobe/v1/agent.grpc.pb.h"
#include "rankprobe/v1/leaf.grpc.pb.h"
#include "tests/bench/simulated_rank.h"

namespace rankprobe {
namespace {

// A collector takes 256 streams of a connection.
constexpr size_t kRanksOfAConnection = 128;

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "bench_light: %s\n", why.c_str());
  std::_Exit(1);
}

class Rank final
    : public grpc::ClientBidiReactor<v1::AgentEvent, v1::Directive> {
 public:
  void Begin(v1::AgentService::Stub* stub, v1::Hello hello) {
    stub->async()->Session(&context_, this);
    v1::AgentEvent event;
    *event.mutable_hello() = std::move(hello);
    Say(std::move(event));
    StartRead(&incoming_);
    StartCall();
  }
  void BeginStep(int64_t step, int64_t now_ns) {
    for (v1::AgentEvent& event : rank_.BeginStep(step, now_ns))
      Say(std::move(event));
  }
  bool AwaitWelcome(absl::Duration time) { return welcomed_.WaitFor(time); }
  void End() {
    ending_ = true;
    context_.TryCancel();
  }
  void AwaitEnd() { (void)ended_.WaitFor(absl::Minutes(1)); }

 private:
  void Say(v1::AgentEvent event) {
    absl::MutexLock lock(&mutex_);
    said_.push_back(std::move(event));
    WriteNext();
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || said_.empty()) return;
    writing_ = true;
    outgoing_ = std::move(said_.front());
    said_.pop_front();
    StartWrite(&outgoing_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    // A stream that is over writes nothing more.
    writing_ = !ok;
    if (ok) WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (auto answer = rank_.Answer(incoming_); answer.has_value())
      Say(*std::move(answer));
    if (incoming_.has_welcome()) welcomed_.Set();
    StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!ending_) Fail("a stream ended: " + status.error_message());
    ended_.Set();
  }

  SimulatedRank rank_;
  grpc::ClientContext context_;
  v1::Directive incoming_;
  std::atomic<bool> ending_{false};
  MonotonicEvent welcomed_, ended_;
  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  v1::AgentEvent outgoing_;
  std::deque<v1::AgentEvent> said_ ABSL_GUARDED_BY(mutex_);
};

// The rank's leaf, or the collector itself where there are none.
std::string Find(v1::RootService::Stub* finder, const v1::Identity& identity,
                 const std::string& collector) {
  const MonotonicTime end = MonotonicAfter(absl::Minutes(1));
  MonotonicEvent never;
  for (;;) {
    grpc::ClientContext context;
    v1::FindCollectorRequest request;
    *request.mutable_identity() = identity;
    v1::FoundCollector found;
    const grpc::Status status =
        finder->FindCollector(&context, request, &found);
    if (status.ok()) return found.address();
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED)
      return collector;
    if (MonotonicNow() >= end) Fail(status.error_message());
    (void)never.WaitFor(absl::Milliseconds(50));
  }
}

int Main(int argc, char** argv) {
  int ranks = 0, step_ms = 0;
  if (argc != 5 || !absl::SimpleAtoi(argv[3], &ranks) ||
      !absl::SimpleAtoi(argv[4], &step_ms) || ranks < 1 || step_ms < 1) {
    std::fprintf(stderr, "usage: bench_light HOST:PORT RUN RANKS STEP_MS\n");
    return 2;
  }
  const SystemClock clock;
  const MonotonicTime began = MonotonicNow();
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto finder = v1::RootService::NewStub(MakeChannel(argv[1], {}, own));
  struct Connection {
    std::unique_ptr<v1::AgentService::Stub> stub;
    size_t ranks = 0;
  };
  // The last one to each collector.
  std::map<std::string, Connection*> last;
  std::vector<std::unique_ptr<Connection>> connections;
  std::vector<std::unique_ptr<Rank>> all;
  for (int i = 0; i < ranks; ++i) {
    v1::Hello hello = SimulatedRank::HelloOf(argv[2], static_cast<size_t>(i),
                                             static_cast<size_t>(ranks));
    const std::string address = Find(finder.get(), hello.identity(), argv[1]);
    Connection*& to = last[address];
    if (to == nullptr || to->ranks == kRanksOfAConnection) {
      connections.push_back(std::make_unique<Connection>());
      to = connections.back().get();
      to->stub = v1::AgentService::NewStub(MakeChannel(address, {}, own));
    }
    ++to->ranks;
    all.push_back(std::make_unique<Rank>());
    all.back()->Begin(to->stub.get(), std::move(hello));
  }
  for (const auto& rank : all)
    if (!rank->AwaitWelcome(absl::Minutes(2))) Fail("no welcome");
  std::printf("connected %.3f\n", absl::ToDoubleSeconds(Since(began)));
  std::fflush(stdout);

  MonotonicEvent stop;
  std::thread stepper;
  for (std::string line; std::getline(std::cin, line);) {
    if (line != "step" || stepper.joinable()) continue;
    stepper = std::thread([&] {
      MonotonicTime next = MonotonicNow();
      for (int64_t step = 0; !stop.WaitFor(Until(next)); ++step) {
        for (const auto& rank : all)
          rank->BeginStep(step, clock.MonotonicNanos());
        next += std::chrono::milliseconds(step_ms);
      }
    });
  }
  stop.Set();
  if (stepper.joinable()) stepper.join();
  for (const auto& rank : all) rank->End();
  for (const auto& rank : all) rank->AwaitEnd();
  // gRPC's threads may be on their way out of them.
  std::_Exit(0);
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Main(argc, argv); }
