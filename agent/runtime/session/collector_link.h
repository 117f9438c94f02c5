// SPDX-License-Identifier: Apache-2.0
// The session's connection to its collector and the thread that runs it:
// control and upload stream, reconnects, spool, frames of the flight recorder.
//
// Ownership: of the Session, which owns the parts it is given; they outlive it.
// Threads: one worker of its own. The methods may be called from any thread.
// Failure: it retries a collector that is absent, hangs or refuses; FillStats
// has the last error. Destroy only after Join or Abandon.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_LINK_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_LINK_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/session/bidi_stream.h"
#include "agent/runtime/session/collector_channel.h"
#include "agent/runtime/session/collector_finder.h"
#include "agent/runtime/session/event_outbox.h"
#include "agent/runtime/session/link_spool.h"
#include "agent/runtime/session/link_status.h"
#include "agent/runtime/session/plan_switcher.h"
#include "agent/runtime/session/session.h"
#include "agent/runtime/session/spool_drain.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/base/monotonic_time.h"
#include "common/base/service_thread.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class CollectorLink {
 public:
  // Starts the worker.
  CollectorLink(const SessionOptions& options, PlanSwitcher* gate,
                FrameQueue* queue, TriggerWatcher* watcher,
                EventOutbox* outbox);
  ~CollectorLink() = default;
  CollectorLink(const CollectorLink&) = delete;
  CollectorLink& operator=(const CollectorLink&) = delete;

  LinkStatus& status() { return status_; }
  const LinkStatus& status() const { return status_; }
  LinkSpool& spool() { return spool_; }
  // See Session::FetchReference.
  absl::Status FetchReference(
      const v1::ReferenceRequest& request, absl::Duration deadline,
      const std::function<absl::Status(const v1::ReferenceChunk&)>& add);
  void SetRank(int64_t rank, int64_t world_size);
  // Sends the edit until the collector has acted on it, also after a reconnect.
  void TellEdit(v1::ConfigEdited edited);
  // Called at the end, before the outbox is stopped, so that the worker can
  // report what is lost to the collector as well. See FrameQueue::Undelivered.
  void AccountAtEnd(bool spool_delivers);

  // Waits for the worker, which ends once the outbox is stopped.
  void Join() { worker_.join(); }
  // Called in the child after a fork: the threads belong to the parent, so none
  // is joined.
  void Abandon() ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  using ControlStream = BidiStream<v1::AgentEvent, v1::Directive>;
  // The queue encodes the frames; payload bytes are not copied.
  using UploadStream = BidiStream<grpc::ByteBuffer, v1::UploadAck>;
  // A collector's address and the channel to it.
  struct Target {
    Target(const std::string& address, const SessionOptions& options,
           bool is_leaf);
    const std::string address;
    const bool is_leaf;
    std::shared_ptr<CollectorChannel> channel;
  };
  static constexpr absl::Duration kTick = absl::Milliseconds(500);
  static constexpr absl::Duration kDamagedBackoff = absl::Milliseconds(2);
  // How long frames may stay without an ack before the agent reconnects. A step
  // waits for the same time.
  static constexpr absl::Duration kAckPatience = absl::Seconds(2);
  static constexpr absl::Duration kMaxAckPatience = absl::Seconds(30);
  // How long to wait for a welcome. It is short because a process that ends
  // before its welcome waits only 1 s for it, and would leave nothing behind.
  // Nothing has been sent yet, so a retry sends nothing twice.
  static constexpr absl::Duration kWelcomePatience = absl::Milliseconds(500);
  static constexpr absl::Duration kMetricsInterval = absl::Seconds(2);
  // How long a collector may take to receive the goodbye.
  static constexpr absl::Duration kFarewellPatience = absl::Milliseconds(500);

  void Work();
  // Delivers what earlier processes left in the spool; false when stopping.
  bool DrainOrphans();
  void StayConnected();
  // Runs one connection; returns true if the collector has welcomed the
  // session.
  bool RunConnection();
  absl::Duration AfterDamage();
  // Whether nothing was received for so long that the agent must reconnect.
  bool IsSilent(absl::Duration waited, absl::Duration* patience);
  // Time until IsSilent may become true.
  absl::Duration UntilSilent() const;
  CollectorFinder NewFinder();
  // Returns the named collector or, if that is a root, the leaf that it names.
  absl::StatusOr<std::shared_ptr<Target>> Locate(CollectorFinder* finder,
                                                 const v1::Identity& identity);
  SpoolDrain NewDrain(CollectorFinder* finder);
  absl::Status DrainOrphan(OrphanSpool* orphan, SpoolDrain* drain,
                           CollectorFinder* finder);
  v1::AgentEvent HelloEvent();
  // Whether any record was sent.
  bool HasSent() const;
  std::unique_ptr<UploadStream> OnWelcome(const v1::Welcome& welcome,
                                          Target* target);
  void OnDirective(const v1::Directive& directive);
  bool NextEvent(v1::AgentEvent* event, MonotonicTime* next_metrics);
  void SendNext(UploadStream* upload);
  // Shares the payload memory with a collector on this host. Done once a
  // connection, when there is memory to share.
  void TryLane();
  // Returns true once the collector has acknowledged the goodbye. `held`: the
  // last frame that the collector is known to have, if that is more than acks
  // have reported.
  bool SayGoodbye(ControlStream* control, uint64_t held, MonotonicTime until);
  // Says goodbye on a new connection if the last one did not deliver it.
  void SayFarewell();
  bool SayGoodbyeAnew(MonotonicTime until);
  // Queues requested contents of the flight recorder, as far as there is room.
  void ShipFlight();
  // `upload`: the upload stream that has ended; null if the control stream has.
  void NoteEnd(const UploadStream* upload, const ControlStream& control,
               bool welcomed);
  void NoteUploadEnd(const grpc::Status& status);
  void TellEditAgain(const v1::Welcome& welcome);

  const SessionOptions& options_;
  PlanSwitcher* const gate_;
  FrameQueue* const queue_;
  TriggerWatcher* const watcher_;
  EventOutbox* const outbox_;

  LinkStatus status_;
  LinkSpool spool_;

  mutable absl::Mutex mutex_;
  // The newest edit of the config file.
  std::optional<v1::ConfigEdited> edit_ ABSL_GUARDED_BY(mutex_);
  // Arguments of AccountAtEnd, and the reason why undelivered data is lost.
  struct Account {
    bool spool_delivers = false;
    std::string why;
  };
  std::optional<Account> account_ ABSL_GUARDED_BY(mutex_);

  // Bytes that may be in flight, as the collector has granted.
  std::atomic<uint64_t> credit_{0};

  // Worker only: the collector's socket and the session's name for sharing the
  // payload memory. Empty if the collector cannot take it, or after the
  // attempt.
  std::string lane_socket_, lane_session_;
  // Worker only: contents of the flight recorder that are being sent.
  std::optional<FlightRing::Contents> shipping_;
  size_t shipped_buffers_ = 0;
  // Worker only: whether the last connection ended because data was damaged in
  // transit, or may have been; how long the agent waited before it reconnected
  // the last time, and what was committed at that time.
  bool damaged_ = false;
  absl::Duration damaged_backoff_ = kDamagedBackoff;
  uint64_t committed_when_damaged_ = 0;
  // Worker only: the next connection must not share a TCP connection with this
  // one.
  bool afresh_ = false;
  absl::Duration ack_patience_ = kAckPatience;
  absl::Duration welcome_patience_ = kWelcomePatience;
  uint64_t acked_ = 0;
  // Worker only: whether a collector has ever welcomed this process, whether
  // one has acknowledged its goodbye, and what is lost as far as this process
  // knows.
  bool welcomed_once_ = false;
  bool said_goodbye_ = false;
  std::optional<v1::Undelivered> undelivered_;
  // The flight recorder's contents wait for room in the queue, which acks free.
  std::atomic<bool> ships_{false};

  // The collector at the given address. Only the worker changes it.
  std::shared_ptr<Target> named_ ABSL_GUARDED_BY(mutex_);
  // The collector of the current connection, or of the last one.
  std::shared_ptr<Target> target_ ABSL_GUARDED_BY(mutex_);
  // Worker only.
  CollectorFinder finder_;
  ServiceThread worker_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_LINK_H_
