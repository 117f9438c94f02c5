// SPDX-License-Identifier: Apache-2.0
#include "collector/server/root_link.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/random/distributions.h"
#include "absl/time/time.h"
#include "common/base/monotonic_time.h"
#include "common/base/random_bytes.h"
#include "common/rpc/checked_message.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

// Below the limit of a port, with room for the message around it.
constexpr size_t kMaxReportBytes = 900 << 10;
constexpr size_t kMaxRunsBytes = 64 << 10;
constexpr absl::Duration kMinBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(1);
constexpr uint32_t kMaxReportMs = 2000;
constexpr absl::Duration kGather = absl::Milliseconds(1);

}  // namespace

std::shared_ptr<grpc::Channel> ChannelToRoot(const std::string& root,
                                             const ChannelSecurity& security,
                                             grpc::ChannelArguments arguments) {
  PingWhileCalling(absl::Seconds(10), absl::Seconds(5), &arguments);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return MakeChannel(root, security, arguments);
}

RootLink::RootLink(Options options, const Logger* logger)
    : options_(std::move(options)),
      logger_(logger),
      channel_(ChannelToRoot(options_.root, options_.security)),
      stub_(v1::RootService::NewStub(channel_)) {}

RootLink::~RootLink() { Stop(); }

void RootLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

void RootLink::Stop() {
  if (!thread_.joinable()) return;
  stop_.Set();
  options_.relay->Wake();
  {
    absl::MutexLock lock(&mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
}

v1::LeafReport RootLink::ReportOf(const Options& options) {
  v1::LeafReport report;
  report.set_leaf(options.leaf);
  report.set_address(options.address);
  report.set_max_ranks(options.max_ranks);
  if (options.waiting) {
    for (std::string& id : options.waiting()) report.add_waiting(std::move(id));
  }
  size_t run_bytes = 0;
  std::vector<std::string> runs;
  if (options.runs) runs = options.runs();
  for (std::string& run : runs) {
    run_bytes += run.size() + 8;
    if (run_bytes > kMaxRunsBytes) {
      report.set_runs_left_out(true);
      break;
    }
    report.add_runs(std::move(run));
  }
  const v1::ListAgentsResponse agents = options.agents();
  if (agents.disks_size() > 0) *report.mutable_disk() = agents.disks(0);
  size_t bytes = report.ByteSizeLong();
  for (const bool connected : {true, false}) {
    for (const v1::AgentInfo& agent : agents.agents()) {
      if (agent.connected() != connected) continue;
      bytes += agent.ByteSizeLong() + 8;
      if (bytes > kMaxReportBytes) {
        report.set_agents_left_out(report.agents_left_out() + 1);
      } else {
        *report.add_agents() = agent;
      }
    }
  }
  return report;
}

void RootLink::Run() {
  RandomBits random;
  absl::Duration backoff = kMinBackoff;
  while (!IsOver()) {
    const bool linked = options_.healthy() && RunStream();
    backoff = linked ? kMinBackoff : std::min(backoff * 2, kMaxBackoff);
    // The random factor spreads the reconnects of leaves that lost one root.
    if (stop_.WaitFor(backoff * absl::Uniform(random, 0.5, 1.5))) return;
  }
}

void RootLink::Talk(Stream* stream, absl::Duration interval,
                    grpc::ClientContext* context) {
  std::atomic<bool> ended{false};
  std::thread reader([&] {
    for (v1::RootNote note; stream->Read(&note);) {
      // The message was damaged in transit: the link is set up again.
      if (IsDamaged(note)) {
        context->TryCancel();
        break;
      }
      for (const v1::RelayedDirective& relayed : note.directives())
        options_.say(relayed.session(), relayed.directive());
      for (v1::LiveQuestion& question : *note.mutable_questions())
        options_.answer(std::move(question));
    }
    ended = true;
    options_.relay->Wake();
  });
  options_.relay->BeginAnew();
  bool goes_on = true;
  MonotonicTime next_report = MonotonicAfter(interval);
  while (goes_on && !ended && !IsOver() && options_.healthy()) {
    v1::LeafReport report;
    report.set_leaf(options_.leaf);
    report.set_address(options_.address);
    report.set_max_ranks(options_.max_ranks);
    report.set_only_events(true);
    // Too much has waited: the link is set up again and begins with hellos.
    if (!options_.relay->Take(kMaxReportBytes, &report)) break;
    if (!report.events().empty()) goes_on = stream->Write(report);
    if (goes_on && MonotonicNow() >= next_report) {
      goes_on = stream->Write(ReportOf(options_));
      next_report = MonotonicAfter(interval);
    }
    if (report.events().empty()) options_.relay->Wait(Until(next_report));
    // Collects the messages of several ranks, because each message costs the
    // root more than its content.
    (void)stop_.WaitFor(kGather);
  }
  // Otherwise the stream has ended, and its status says why.
  if (goes_on && !ended) context->TryCancel();
  reader.join();
}

bool RootLink::RunStream() {
  grpc::ClientContext context;
  AddToken(options_.security, &context);
  {
    absl::MutexLock lock(&mutex_);
    context_ = &context;
    // Stop may have been called before context_ was set.
    if (IsOver()) context.TryCancel();
  }
  const auto stream = stub_->Link(&context);
  v1::RootNote note;
  const bool answered =
      stream->Write(ReportOf(options_)) && stream->Read(&note);
  // If there is no answer, the status of the stream gives the root's reason.
  const bool damaged = answered && IsDamaged(note);
  const bool linked = answered && !damaged;
  if (linked) {
    logger_->Info("root_linked", {{"root", options_.root}});
    told_.clear();
    Talk(stream.get(),
         absl::Milliseconds(std::clamp(note.report_ms(), 100u, kMaxReportMs)),
         &context);
  } else if (IsOver() || damaged) {
    context.TryCancel();
  }
  const grpc::Status status = stream->Finish();
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
  }
  const std::string why =
      linked ? "it had been linked" : status.error_message();
  if (!IsOver() && told_ != why) {
    told_ = why;
    logger_->Log(
        Logger::Severity::kWarning, "no_root",
        {{"root", options_.root},
         {"status", FromGrpc(status).ToString()},
         {"what_goes_on", "ranks that are here stay; it is looked for"}});
  }
  return linked;
}

}  // namespace rankprobe
