// SPDX-License-Identifier: Apache-2.0
// The end of the connection: losses of the process are reported to the
// collector and to the user.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "agent/runtime/session/collector_link.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxReasonBytes = 500;
// For all attempts to report losses; a process without losses tries once.
constexpr absl::Duration kFarewellTime = absl::Seconds(1);
constexpr absl::Duration kFarewellTick = absl::Milliseconds(25);

}  // namespace

void CollectorLink::AccountAtEnd(bool spool_delivers) {
  const std::string why = status_.WhyLost();
  absl::MutexLock lock(&mutex_);
  account_ = Account{spool_delivers, why.substr(0, kMaxReasonBytes)};
}

bool CollectorLink::SayGoodbye(ControlStream* control, uint64_t held,
                               MonotonicTime until) {
  v1::AgentEvent event;
  event.mutable_goodbye()->set_reason("process ends");
  {
    absl::MutexLock lock(&mutex_);
    if (account_.has_value()) {
      undelivered_ = queue_->Undelivered(account_->spool_delivers, held);
      undelivered_->set_reason(account_->why);
      *event.mutable_goodbye()->mutable_undelivered() = *undelivered_;
    }
  }
  while (!control->CanWrite() && !control->done() && MonotonicNow() < until)
    outbox_->Wait(kFarewellTick);
  if (!control->CanWrite()) return false;
  control->Write(std::move(event));
  // The collector ends the stream once it has received the goodbye.
  while (!control->done() && MonotonicNow() < until)
    outbox_->Wait(kFarewellTick);
  return control->done() && control->status().ok();
}

bool CollectorLink::SayGoodbyeAnew(MonotonicTime until) {
  std::shared_ptr<Target> last;
  {
    absl::MutexLock lock(&mutex_);
    last = target_;
  }
  // A new channel, because the last connection did not deliver the goodbye.
  const Target target(last->address, options_, last->is_leaf);
  ControlStream control([this] { outbox_->Wake(); });
  AddToken(options_.security, control.context());
  target.channel->Session(control.context(), &control);
  control.Start();
  control.Write(HelloEvent());
  bool said = false;
  v1::Directive directive;
  while (!directive.has_welcome() && !control.done() &&
         MonotonicNow() < until) {
    if (!control.Pop(&directive)) outbox_->Wait(kFarewellTick);
  }
  // The collector may have more than its acks could report.
  if (directive.has_welcome()) {
    said = SayGoodbye(&control, directive.welcome().resume_after_sequence(),
                      until);
  }
  control.Close();
  return said;
}

void CollectorLink::SayFarewell() {
  bool loses = false;
  {
    absl::MutexLock lock(&mutex_);
    loses = account_.has_value();
    if (loses && !undelivered_.has_value()) {
      undelivered_ = queue_->Undelivered(account_->spool_delivers);
      undelivered_->set_reason(account_->why);
    }
  }
  const MonotonicTime end = MonotonicAfter(kFarewellTime);
  while (welcomed_once_ && !said_goodbye_ && MonotonicNow() < end) {
    said_goodbye_ =
        SayGoodbyeAnew(std::min(end, MonotonicAfter(kFarewellPatience)));
    if (!loses) break;
    if (!said_goodbye_) outbox_->Wait(kFarewellTick);
  }
  if (!loses) return;
  status_.TellUndelivered(*undelivered_);
  if (undelivered_->records() + undelivered_->payloads() > 0 &&
      options_.on_undelivered)
    options_.on_undelivered(*undelivered_);
}

}  // namespace rankprobe
