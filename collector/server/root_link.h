// SPDX-License-Identifier: Apache-2.0
// A leaf's thread that reports the leaf, its ranks and their messages to its
// root, and delivers the root's directives and questions.
//
// Ownership: one per server; the Logger outlives it. Threads: Start and Stop
// from one thread. Failure: an unreachable or refusing root is tried again; the
// begin and the end of that are logged; connected ranks stay connected to the
// leaf.
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

// Returns a channel to a root that may be unreachable: it reconnects soon, and
// detects a lost connection soon.
std::shared_ptr<grpc::Channel> ChannelToRoot(
    const std::string& root, const ChannelSecurity& security,
    grpc::ChannelArguments arguments = {});

class RootLink {
 public:
  struct Options {
    // HOST:PORT.
    std::string root;
    ChannelSecurity security;
    // Name, address and limit of this leaf.
    std::string leaf;
    std::string address;
    uint32_t max_ranks = 0;
    std::function<v1::ListAgentsResponse()> agents;
    // Messages of the ranks; outlives the link.
    RelayQueue* relay = nullptr;
    std::function<void(const std::string& session, const v1::Directive&)> say;
    // Returns false if the leaf can take no more data, so that no ranks should
    // be sent to it.
    std::function<bool()> healthy;
    // Returns the runs of which it has data.
    std::function<std::vector<std::string>()> runs;
    // Must not wait.
    std::function<void(v1::LiveQuestion)> answer;
    // Returns the value of LeafReport.waiting.
    std::function<std::vector<std::string>()> waiting;
  };

  RootLink(Options options, const Logger* logger);
  ~RootLink();

  void Start();
  // The root notices the end of the stream.
  void Stop();

  // Returns the report; as many agents as fit, connected ones first.
  static v1::LeafReport ReportOf(const Options& options);

 private:
  void Run();
  // Runs one stream until its end; returns true if the root had accepted it.
  bool RunStream();
  using Stream = grpc::ClientReaderWriter<v1::LeafReport, v1::RootNote>;
  // Reports and reads until the stream ends, Stop is called, or the leaf is not
  // healthy.
  void Talk(Stream* stream, absl::Duration interval,
            grpc::ClientContext* context);
  bool IsOver() { return stop_.WaitFor(absl::ZeroDuration()); }

  const Options options_;
  const Logger* const logger_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::RootService::Stub> stub_;
  MonotonicEvent stop_;
  absl::Mutex mutex_;
  // Context of the current stream.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // The last logged message; used by the thread only.
  std::string told_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_ROOT_LINK_H_
