// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/spool_delivery.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "agent/runtime/session/collector_finder.h"
#include "agent/runtime/session/event_outbox.h"
#include "agent/runtime/session/spool.h"
#include "agent/runtime/session/spool_drain.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/io/file_system.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
constexpr int kMaxDeliveryMessageBytes = 4 << 20;

// The end of the deadline, and the outbox that is woken for it.
class DeliveryClock {
 public:
  explicit DeliveryClock(absl::Duration deadline)
      : end_(MonotonicAfter(deadline)) {}
  void Wake() { outbox_.Wake(); }
  // Returns false when the deadline has passed.
  bool Wait(absl::Duration timeout) {
    const absl::Duration left = Until(end_);
    if (left <= absl::ZeroDuration()) return false;
    outbox_.Wait(std::min(timeout, left));
    return true;
  }

 private:
  const MonotonicTime end_;
  EventOutbox outbox_;
};

}  // namespace

absl::StatusOr<SpoolDelivery> DeliverSpools(
    const SpoolDeliveryOptions& options) {
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  if (!file_system->List(options.directory).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no directory ", options.directory, " that can be read"));
  }
  SpoolDelivery result;
  const std::vector<std::unique_ptr<OrphanSpool>> orphans = OrphanSpool::Find(
      options.directory, file_system.get(), IsOwnFile, &result.passed_over);
  if (orphans.empty()) return result;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxDeliveryMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxDeliveryMessageBytes);
  // Each on its own connection: channels with equal arguments would share one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto connect = [&](const std::string& address) {
    return MakeCollectorChannel(
        MakeChannel(address, options.security, arguments));
  };
  std::shared_ptr<CollectorChannel> channel = connect(options.collector);
  DeliveryClock clock(options.deadline);
  bool answered = false;
  const auto wake = [&clock] { clock.Wake(); };
  const auto wait = [&clock](absl::Duration timeout) {
    return clock.Wait(timeout);
  };
  const auto deliver = [&](OrphanSpool* orphan) -> absl::Status {
    const MonotonicTime give_up = MonotonicAfter(options.patience);
    CollectorFinder finder(channel, options.security, "", wake, wait);
    SpoolDrain drain(options.security, std::string(Version()), wake, wait, [&] {
      answered = true;
      finder.NoteReached();
    });
    absl::Status status;
    do {
      const absl::StatusOr<std::string> leaf = finder.Find(orphan->identity());
      status = leaf.status();
      if (!leaf.ok()) continue;
      const std::shared_ptr<CollectorChannel> to =
          leaf->empty() ? channel : connect(*leaf);
      status = drain.Run(to.get(), orphan);
      if (absl::IsUnavailable(status)) finder.NoteNotReached();
    } while (absl::IsUnavailable(status) && MonotonicNow() < give_up &&
             clock.Wait(kRetryInterval));
    return status;
  };
  for (const auto& orphan : orphans) {
    absl::Status status = deliver(orphan.get());
    if (!status.ok() && !absl::IsUnavailable(status) &&
        !absl::IsCancelled(status)) {
      // A bit that flips in the headers of an answer causes refusals for the
      // rest of that connection, so a refusal counts only if a second
      // connection gets it, too.
      channel = connect(options.collector);
      status = deliver(orphan.get());
    }
    if (status.ok()) {
      result.delivered.push_back(orphan->identity());
      continue;
    }
    if (absl::IsUnavailable(status) && !answered) return status;
    result.left.push_back(
        {orphan->identity(), absl::IsCancelled(status)
                                 ? "the time limit was reached"
                                 : std::string(status.message())});
  }
  return result;
}

}  // namespace rankprobe
