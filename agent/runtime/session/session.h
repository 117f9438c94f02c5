// SPDX-License-Identifier: Apache-2.0
// The agent's connection to the collector. Owns the byte-budgeted queue, the
// control stream, the upload stream and the threads behind them; knows nothing
// of tensors, names or filters.
//
// Ownership: one Session per process, owned by the Recorder's owner.
// Threads: every method may be called from any thread. Methods marked
// [training] never wait on the network; only SubmitPayload and SubmitRecords
// under OverflowPolicy::kBlock may wait for room: for at most block_deadline, or
// silence_deadline where the collector says nothing.
// Failure: an absent, hanging, refusing or restarting collector is never an
// error of a [training] method; dropped data is counted and reported as
// LossEvents. After a fork the child's Session does nothing.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_SESSION_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_SESSION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

// When no collector answers within a second. kIgnore: the training continues,
// stderr says that nothing is recorded, and the session keeps trying to
// connect. kSpool: the same, and records are kept on disk for the next session.
// kFail: Create waits a while longer and then returns an error.
enum class MissingCollector { kIgnore, kSpool, kFail };

// When a step that was recorded is safe. kCommitted: the collector has written
// it. kKept: its records are in a file of spool_directory, written by the
// training thread itself, from which the next process there or `rankprobe
// deliver` brings them to the collector should this one be killed. Payloads
// are not in that file: a step that has any is safe once it is committed.
enum class StopBarrier { kCommitted, kKept };

struct SessionOptions {
  // "host:port". Empty: FAILED to create.
  std::string collector;
  ChannelSecurity security;
  v1::Identity identity;  // incarnation 0: chosen by Create
  // Of several collectors: processes of one text hold the same parameters and are
  // to meet in one. Empty: not known.
  std::string replica;
  // Hello.incarnation_secret; empty: chosen by Create.
  std::string incarnation_secret;
  std::string agent_version;
  std::string framework_version;
  // The process' own config.json; used by the collector when the run has none.
  std::string config_json;
  // The file it was read from, for a person; empty: none.
  std::string config_path;
  uint64_t queue_budget_bytes = uint64_t{256} << 20;
  OverflowPolicy policy = OverflowPolicy::kBlock;
  absl::Duration block_deadline = absl::Seconds(10);
  // How long a step waits for one that says nothing, for room and at its end: with
  // what waking up takes, 50 ms.
  absl::Duration silence_deadline = absl::Milliseconds(45);
  uint64_t max_payload_bytes = uint64_t{4} << 30;
  // Payloads that the collector was sent lately are not sent again. False only
  // to measure what that saves.
  bool remember_payloads = true;
  absl::Duration reconnect_min = absl::Milliseconds(100);
  absl::Duration reconnect_max = absl::Seconds(5);
  // Frames are kept here too until they are committed, so that they outlive the
  // process: the next session with this directory delivers them. Empty: no
  // spool.
  std::string spool_directory;
  // Another process delivers the spool's remaining files when this process has
  // ended, and reports those that it could not deliver.
  bool spool_is_attended = false;
  // kKept needs spool_directory.
  StopBarrier stop_barrier = StopBarrier::kCommitted;
  // A collector on this host may read payloads where they lie in shared memory.
  bool lane = true;
  MissingCollector on_missing = MissingCollector::kIgnore;
  // How long Create waits under kFail.
  absl::Duration missing_deadline = absl::Seconds(10);
  uint64_t spool_bytes = uint64_t{4} << 30;
  // Time the destructor may take to drain.
  absl::Duration drain_deadline = absl::Seconds(10);
  // Called by the destructor when records or payloads end with the process: no
  // collector has them and no spool keeps them. stderr says so, too.
  std::function<void(const v1::Undelivered&)> on_undelivered;
  // The collector may know another start of the program under this name of the
  // run: stderr says so. False where that is no surprise: this is a restart, or
  // the collector is the job's own.
  bool tell_other = true;
  // Of a simulation, in the place of gRPC and of the disk that the spool is on.
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

// What a config file says after it was edited.
struct ConfigEdit {
  std::string path;
  // After constructor arguments; empty with a fault.
  std::string config_json;
  // Compiled from that; null with a fault.
  std::shared_ptr<const Plan> plan;
  // Why it cannot be used; empty: it can.
  std::string fault;
};

class TriggerWatcher;

class Session {
 public:
  virtual ~Session() = default;

  // Starts the threads and returns at once; connecting happens behind.
  // INVALID_ARGUMENT for bad options. Under MissingCollector::kFail it waits
  // for the collector, and fails as WaitConnected does.
  static absl::StatusOr<std::unique_ptr<Session>> Create(SessionOptions options,
                                                         const Clock* clock);

  // Waits until the collector has welcomed this session. DEADLINE_EXCEEDED;
  // ALREADY_EXISTS when another live process claims this (run, rank);
  // FAILED_PRECONDITION when the peer is not a compatible collector.
  virtual absl::Status WaitConnected(absl::Duration deadline) = 0;

  // [training] The process has entered `step`: reports progress, applies a plan
  // whose step has been reached, and returns the plan in force. Cheap.
  virtual ActivePlan BeginStep(int64_t step) = 0;

  // [training] Replaces the plan from this side (constructor config); used
  // while the collector has none of its own.
  virtual void SetLocalPlan(std::shared_ptr<const Plan> plan, bool enabled) = 0;

  // [training] The config file has been edited. The collector receives it and
  // makes a plan of the run, unless an operator has sent a later plan.
  // `at_once`, when the collector is private: in force here with the next
  // BeginStep.
  virtual void EditConfig(const ConfigEdit& edit, bool at_once) {}

  // This process cannot record: plans that enable recording are refused for
  // this reason, which is sent to the collector at once. `only_apis`: it can
  // record plans without APIs, and the reason is sent where another comes.
  virtual void RefuseRecording(const std::string& reason, bool only_apis) {}

  // [training] Memory for one payload, or null if the payload is dropped;
  // `*reason` says why. Waits under kBlock. Null `reason`: the payload may be
  // left out, so nothing waits for room and none counts as lost.
  virtual std::unique_ptr<PayloadBuffer> ReservePayload(
      uint64_t length_bytes, v1::LossReason* reason) = 0;

  // [training] Queues the payload unless this run is known to have it.
  virtual void SubmitPayload(const std::array<uint8_t, 16>& digest,
                             std::unique_ptr<PayloadBuffer> payload) = 0;

  // [training] True if these bytes were submitted by this process or are known
  // to the collector: no need to copy them.
  virtual bool KnowsPayload(const std::array<uint8_t, 16>& digest,
                            uint64_t length_bytes) = 0;

  // [training] Queues records of one step (batch()->step is set). Payloads they
  // refer to were submitted before. False: dropped and counted.
  virtual bool SubmitRecords(std::unique_ptr<RecordBuffer> records) = 0;

  // [training] The rank has become known (proc -> rank).
  virtual void SetRank(int64_t rank, int64_t world_size) = 0;

  // Waits until everything submitted before has reached `level`.
  // DEADLINE_EXCEEDED naming what is missing; nothing is dropped by that.
  virtual absl::Status Flush(v1::Durability level, absl::Duration deadline) = 0;

  // Waits until what was submitted before is in the file of the spool (a write,
  // no sync). At once without a spool, and under StopBarrier::kKept, where Keep
  // has written what can be. DEADLINE_EXCEEDED.
  virtual absl::Status FlushToSpool(absl::Duration deadline) {
    return absl::OkStatus();
  }

  // [training] Under StopBarrier::kKept: makes everything submitted before
  // safe, in this thread, without waiting. False: it is not safe, and Flush
  // waits for it.
  virtual bool Keep() { return false; }

  // [training] Reports to the user that a step waited for a collector that is
  // connected and accepts nothing.
  virtual void TellStuck(absl::Duration waited) {}

  virtual SessionStats GetStats() const = 0;

  // [training] Queues an event for the collector. Bounded; may be dropped.
  virtual void SendEvent(v1::AgentEvent event) = 0;

  // Bytes of payload reservations that may be held back at a time.
  virtual uint64_t HoldLimitBytes() const { return UINT64_MAX; }

  // Asks the collector for a reference, in pieces. Waits for the network, at most
  // until the deadline. NOT_FOUND, DEADLINE_EXCEEDED, UNAVAILABLE, and the
  // error of `add`, which ends it.
  virtual absl::Status FetchReference(
      const v1::ReferenceRequest& request, absl::Duration deadline,
      const std::function<absl::Status(const v1::ReferenceChunk&)>& add) {
    return absl::UnimplementedError("no collector to have a reference from");
  }

  // Flight recorder, triggers and budgets of this process; null: none.
  virtual TriggerWatcher* watcher() { return nullptr; }
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_SESSION_H_
