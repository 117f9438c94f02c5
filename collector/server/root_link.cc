// SPDX-License-Identifier: Apache-2.0
#include "collector/server/root_link.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/time/time.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

// Below what a port takes, with room for what frames it.
constexpr size_t kMaxReportBytes = 900 << 10;
constexpr absl::Duration kMinBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(1);
constexpr uint32_t kMaxReportMs = 2000;

std::shared_ptr<grpc::Channel> ChannelTo(const RootLink::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return MakeChannel(options.root, options.security, arguments);
}

}  // namespace

RootLink::RootLink(Options options, const Logger* logger)
    : options_(std::move(options)),
      logger_(logger),
      channel_(ChannelTo(options_)),
      stub_(v1::RootService::NewStub(channel_)) {}

RootLink::~RootLink() { Stop(); }

void RootLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

void RootLink::Stop() {
  if (!thread_.joinable()) return;
  stop_.Set();
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
  const v1::ListAgentsResponse agents = options.agents();
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
  absl::BitGen random;
  absl::Duration backoff = kMinBackoff;
  while (!stop_.WaitFor(absl::ZeroDuration())) {
    const bool linked = options_.healthy() && RunStream();
    backoff = linked ? kMinBackoff : std::min(backoff * 2, kMaxBackoff);
    // Leaves that lost one root must not come back in the same moment.
    if (stop_.WaitFor(backoff * absl::Uniform(random, 0.5, 1.5))) return;
  }
}

bool RootLink::RunStream() {
  grpc::ClientContext context;
  AddToken(options_.security, &context);
  {
    absl::MutexLock lock(&mutex_);
    context_ = &context;
    // Stop has looked for it before.
    if (stop_.WaitFor(absl::ZeroDuration())) context.TryCancel();
  }
  const auto stream = stub_->Link(&context);
  v1::RootNote note;
  const bool linked = stream->Write(ReportOf(options_)) && stream->Read(&note);
  if (linked) {
    logger_->Info("root_linked", {{"root", options_.root}});
    told_.clear();
    const absl::Duration interval =
        absl::Milliseconds(std::clamp(note.report_ms(), 100u, kMaxReportMs));
    while (!stop_.WaitFor(interval) && options_.healthy() &&
           stream->Write(ReportOf(options_))) {
    }
  }
  // Else it has ended, and says why.
  if (stop_.WaitFor(absl::ZeroDuration()) || !options_.healthy())
    context.TryCancel();
  const grpc::Status status = stream->Finish();
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
  }
  const std::string why =
      linked ? "it had been linked" : status.error_message();
  if (!stop_.WaitFor(absl::ZeroDuration()) && told_ != why) {
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
