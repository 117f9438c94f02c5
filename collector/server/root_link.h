// SPDX-License-Identifier: Apache-2.0
// A leaf's thread that reports the leaf, its ranks and their messages to its
// root, and delivers the root's directives and questions.
//
// Ownership: one per server; the Logger outlives it. Threads: Start and Stop from
// one thread. Failure: a root that is away or refuses is tried again, and that is
// logged when it begins and when it is over; ranks that are here stay here.
#ifndef RANKPROBE_COLLECTOR_SERVER_ROOT_LINK_H_
#define RANKPROBE_COLLECTOR_SERVER_ROOT_LINK_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/control/relay_queue.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {

// To a root that may be away: it is tried again soon, and soon known to be gone.
std::shared_ptr<grpc::Channel> ChannelToRoot(
    const std::string& root, const ChannelSecurity& security,
    grpc::ChannelArguments arguments = {});

class RootLink {
 public:
  struct Options {
    // HOST:PORT.
    std::string root;
    ChannelSecurity security;
    // Of this leaf.
    std::string leaf;
    std::string address;
    uint32_t max_ranks = 0;
    std::function<v1::ListAgentsResponse()> agents;
    // What ranks say; outlives the link.
    RelayQueue* relay = nullptr;
    std::function<void(const std::string& session, const v1::Directive&)> say;
    // False: it can take nothing any more, and is not to be sent ranks.
    std::function<bool()> healthy;
    // That it has something of.
    std::function<std::vector<std::string>()> runs;
    // Waits for nothing.
    std::function<void(v1::LiveQuestion)> answer;
    // LeafReport.waiting.
    std::function<std::vector<std::string>()> waiting;
  };

  RootLink(Options options, const Logger* logger);
  ~RootLink();

  void Start();
  // The root is told by the end of the stream.
  void Stop();

  // What is told; as many agents as fit, connected ones first.
  static v1::LeafReport ReportOf(const Options& options);

 private:
  void Run();
  // One life of the stream; true if the root had taken it.
  bool RunStream();
  using Stream = grpc::ClientReaderWriter<v1::LeafReport, v1::RootNote>;
  // Until it ends, this one is told to stop, or is not well.
  void Talk(Stream* stream, absl::Duration interval,
            grpc::ClientContext* context);
  bool IsOver() { return stop_.WaitFor(absl::ZeroDuration()); }

  const Options options_;
  const Logger* const logger_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::RootService::Stub> stub_;
  MonotonicEvent stop_;
  absl::Mutex mutex_;
  // Of the stream under way.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // The thread's: what was logged last.
  std::string told_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_ROOT_LINK_H_
