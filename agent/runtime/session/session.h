// SPDX-License-Identifier: Apache-2.0
// The agent's connection to the collector. Owns the byte-budgeted queue, the
// control stream, the upload stream and the threads behind them; knows nothing
// of tensors, names or filters.
//
// Ownership: one Session per process, owned by the Recorder's owner.
// Threads: every method may be called from any thread. Methods marked
// [training] never wait for the network; only SubmitPayload and SubmitRecords
// under OverflowPolicy::kBlock may wait for room: for at most block_deadline,
// or silence_deadline if the collector does not respond.
// Failure: an absent, hanging, refusing or restarting collector is never an
// error of a [training] method; dropped data is counted and reported as
// LossEvents. After a fork the child's Session does nothing.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_SESSION_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_SESSION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/buffers.h"
#include "agent/runtime/queue/session_stats.h"
#include "common/base/clock.h"
#include "common/config/plan.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class CollectorChannel;
class FileSystem;

// What to do when no collector answers within a second. kIgnore: the training
// continues, stderr reports that nothing is recorded, and the session keeps
// trying to connect. kSpool: the same, and records are kept on disk for the
// next session. kFail: Create waits longer and then returns an error.
enum class MissingCollector { kIgnore, kSpool, kFail };

// When a recorded step is safe. kCommitted: the collector has written it.
// kKept: its records are in a file of spool_directory, written by the training
// thread itself. If this process is killed, the next process there or
// `rankprobe deliver` sends them to the collector. Payloads are not in that
// file: a step with payloads is safe once it is committed.
enum class StopBarrier { kCommitted, kKept };

struct SessionOptions {
  // "host:port". If empty, Create fails.
  std::string collector;
  ChannelSecurity security;
  v1::Identity identity;  // incarnation 0: chosen by Create
  // Processes with the same text hold the same parameters and should connect to
  // the same of several collectors. Empty if not known.
  std::string replica;
  // Hello.incarnation_secret; if empty, Create chooses one.
  std::string incarnation_secret;
  std::string agent_version;
  std::string framework_version;
  // The config.json of this process; the collector uses it if the run has none.
  std::string config_json;
  // The file that it was read from, for messages; empty if there is none.
  std::string config_path;
  uint64_t queue_budget_bytes = uint64_t{256} << 20;
  OverflowPolicy policy = OverflowPolicy::kBlock;
  absl::Duration block_deadline = absl::Seconds(10);
  // How long a step waits, for room and at its end, for a collector that does
  // not respond: with the time to wake up, 50 ms.
  absl::Duration silence_deadline = absl::Milliseconds(45);
  uint64_t max_payload_bytes = uint64_t{4} << 30;
  // Payloads that were sent to the collector recently are not sent again. Set
  // to false only to measure what that saves.
  bool remember_payloads = true;
  absl::Duration reconnect_min = absl::Milliseconds(100);
  absl::Duration reconnect_max = absl::Seconds(5);
  // Directory that also keeps frames until they are committed, so that they
  // outlive the process: the next session with this directory delivers them.
  // Empty: no spool.
  std::string spool_directory;
  // Another process delivers the remaining files of the spool when this process
  // has ended, and reports those that it could not deliver.
  bool spool_is_attended = false;
  // kKept requires spool_directory.
  StopBarrier stop_barrier = StopBarrier::kCommitted;
  // A collector on this host may read payloads directly from shared memory.
  bool lane = true;
  MissingCollector on_missing = MissingCollector::kIgnore;
  // How long Create waits under kFail.
  absl::Duration missing_deadline = absl::Seconds(10);
  uint64_t spool_bytes = uint64_t{4} << 30;
  // How long the destructor may take to drain the queue.
  absl::Duration drain_deadline = absl::Seconds(10);
  // Called by the destructor if records or payloads are lost with the process:
  // no collector and no spool has them. stderr reports it, too.
  std::function<void(const v1::Undelivered&)> on_undelivered;
  // Report on stderr that the collector knows another start of the program
  // under this name of the run. False if that is expected: this is a restart,
  // or the collector belongs to this job.
  bool tell_other = true;
  // For simulations: replace gRPC, and the disk that holds the spool.
  std::function<std::shared_ptr<CollectorChannel>(const std::string& address)>
      connect;
  FileSystem* file_system = nullptr;
};

// The plan in force at a step.
struct ActivePlan {
  std::shared_ptr<const Plan> plan;  // null: no plan at all
  uint64_t epoch = 0;
  bool enabled = false;
};

// Result of reading a config file after an edit.
struct ConfigEdit {
  std::string path;
  // With the constructor arguments applied; empty if there is a fault.
  std::string config_json;
  // Compiled from config_json; null if there is a fault.
  std::shared_ptr<const Plan> plan;
  // Why the file cannot be used; empty if it can.
  std::string fault;
};

class TriggerWatcher;

class Session {
 public:
  virtual ~Session() = default;

  // Starts the threads and returns at once; they connect in the background.
  // INVALID_ARGUMENT for bad options. Under MissingCollector::kFail it waits
  // for the collector, and fails as WaitConnected does.
  static absl::StatusOr<std::unique_ptr<Session>> Create(SessionOptions options,
                                                         const Clock* clock);

  // Waits until the collector has welcomed this session. Returns
  // DEADLINE_EXCEEDED; ALREADY_EXISTS if another live process claims this (run,
  // rank); FAILED_PRECONDITION if the peer is not a compatible collector.
  virtual absl::Status WaitConnected(absl::Duration deadline) = 0;

  // [training] Enters `step`: reports progress, applies a plan whose step has
  // been reached, and returns the plan in force. Cheap.
  virtual ActivePlan BeginStep(int64_t step) = 0;

  // [training] Enters `step` without looking for a plan, which costs less than
  // BeginStep. Returns false and does nothing if a plan is due or the one in
  // force records something.
  virtual bool BeginIdleStep(int64_t step) { return false; }

  // [training] Sets the process' own plan (constructor config), which is used
  // while the collector has none.
  virtual void SetLocalPlan(std::shared_ptr<const Plan> plan, bool enabled) = 0;

  // [training] Reports that the config file was edited. The collector receives
  // the edit and makes a plan of the run from it, unless an operator has sent a
  // later plan. `at_once`, for a private collector: the edit takes effect here
  // with the next BeginStep.
  virtual void EditConfig(const ConfigEdit& edit, bool at_once) {}

  // Declares that this process cannot record: plans that enable recording are
  // refused for this reason, which is sent to the collector at once.
  // `only_apis`: the process can record plans without APIs, and the reason is
  // sent only in answer to a plan with APIs.
  virtual void RefuseRecording(const std::string& reason, bool only_apis) {}

  // [training] Returns memory for one payload, or null if the payload is
  // dropped; `*reason` is then set. Waits for room under kBlock. With a null
  // `reason` the payload is optional: nothing waits for room, and nothing
  // counts as lost.
  virtual std::unique_ptr<PayloadBuffer> ReservePayload(
      uint64_t length_bytes, v1::LossReason* reason) = 0;

  // [training] Queues the payload unless this run is known to have it.
  virtual void SubmitPayload(const std::array<uint8_t, 16>& digest,
                             std::unique_ptr<PayloadBuffer> payload) = 0;

  // [training] Whether these bytes were submitted by this process or are known
  // to the collector, so that they need not be copied.
  virtual bool KnowsPayload(const std::array<uint8_t, 16>& digest,
                            uint64_t length_bytes) = 0;

  // [training] Queues records of one step (batch()->step is set). Payloads that
  // they refer to must have been submitted before. Returns false if they are
  // dropped, and counts them.
  virtual bool SubmitRecords(std::unique_ptr<RecordBuffer> records) = 0;

  // [training] The rank has become known: the identity changes from proc to
  // rank.
  virtual void SetRank(int64_t rank, int64_t world_size) = 0;

  // Waits until everything submitted before has reached `level`.
  // DEADLINE_EXCEEDED names what is missing; nothing is dropped by that.
  virtual absl::Status Flush(v1::Durability level, absl::Duration deadline) = 0;

  // Waits until what was submitted before is in the file of the spool (written,
  // not synced). Returns at once without a spool, and under StopBarrier::kKept,
  // where Keep has already written all it can. Returns DEADLINE_EXCEEDED
  // otherwise.
  virtual absl::Status FlushToSpool(absl::Duration deadline) {
    return absl::OkStatus();
  }

  // [training] Under StopBarrier::kKept: writes everything submitted before to
  // the spool, in this thread, without waiting for the collector. Returns false
  // if it is not safe there; the caller must then wait by Flush.
  virtual bool Keep() { return false; }

  // [training] Reports to the user that a step waited for a collector that is
  // connected but accepts nothing.
  virtual void TellStuck(absl::Duration waited) {}

  virtual SessionStats GetStats() const = 0;

  // [training] Queues an event for the collector. Bounded; may be dropped.
  virtual void SendEvent(v1::AgentEvent event) = 0;

  // How many bytes of payload reservations may be held back at a time.
  virtual uint64_t HoldLimitBytes() const { return UINT64_MAX; }

  // Requests a reference from the collector and passes its pieces to `add`.
  // Waits for the network, at most until the deadline. Returns NOT_FOUND,
  // DEADLINE_EXCEEDED, UNAVAILABLE, or the error of `add`, which ends the call.
  virtual absl::Status FetchReference(
      const v1::ReferenceRequest& request, absl::Duration deadline,
      const std::function<absl::Status(const v1::ReferenceChunk&)>& add) {
    return absl::UnimplementedError("no collector to have a reference from");
  }

  // Flight recorder, triggers and budgets of this process; null if it has none.
  virtual TriggerWatcher* watcher() { return nullptr; }
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_SESSION_H_
