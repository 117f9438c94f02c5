// SPDX-License-Identifier: Apache-2.0
// Group commit: takes the frames of all uploads in turn, writes them with one
// FrameStore::Commit, tells each upload, and syncs at a cadence.
//
// Ownership: one per collector; FrameStore, IngestGate and Clock outlive it.
// Threads: Add, Remove and Submit from any thread, none of them waits for the
// disk. Callbacks come from the commit thread and the sync thread, without
// locks held.
// Failure: no space is retried and the uploads are told to hold; any other
// store error is final: all uploads end with it and `failed` is called once. A
// frame that the store refuses for what it holds is committed empty, and so is a
// piece of a payload that the disk has no room for.
#ifndef RANKPROBE_COLLECTOR_INGEST_COMMIT_QUEUE_H_
#define RANKPROBE_COLLECTOR_INGEST_COMMIT_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/control/ingest_gate.h"
#include "collector/ingest/decoded_size.h"
#include "collector/ingest/disk_pressure.h"
#include "collector/ingest/ingest_metrics.h"
#include "collector/ingest/no_room_payloads.h"
#include "collector/ingest/payload_leases.h"
#include "collector/ingest/received_frame.h"
#include "collector/store/frame_store.h"
#include "common/base/monotonic_event.h"
#include "common/base/monotonic_time.h"
#include "common/base/service_thread.h"
#include "common/filter/record_filter.h"

namespace rankprobe {

class CommitQueue {
 public:
  struct Options {
    // Of frames taken into one commit.
    uint64_t batch_bytes = 8 << 20;
    // Memory of all uploads' frames that wait for the disk; credit shrinks
    // near it.
    uint64_t pending_bytes = uint64_t{512} << 20;
    uint64_t credit_bytes = 16 << 20;
    absl::Duration sync_interval = absl::Seconds(1);
    // So many committed bytes are synced before the interval is over: what lies in
    // the page cache is forgotten when it is synced, and little memory that goes
    // round is written faster than much that is new.
    uint64_t sync_bytes = 32 << 20;
    absl::Duration retry_interval = absl::Milliseconds(500);
    // Beyond it a new one ends with RESOURCE_EXHAUSTED.
    size_t max_uploads = 8192;
    // May be null; outlives the queue.
    IngestMetrics* metrics = nullptr;
    // May be null: payloads are taken as long as there is any space. Outlives the
    // queue.
    DiskPressure* pressure = nullptr;
  };
  // How an upload hears of its frames; both only queue.
  struct Listener {
    std::function<void(const v1::UploadAck&)> ack;
    std::function<void(const absl::Status&)> end;
    // There is room again after Submit said that there is none.
    std::function<void()> resume;
  };

  CommitQueue(const Options& options, FrameStore* store, IngestGate* gate,
              const Clock* clock,
              std::function<void(const absl::Status&)> failed);
  ~CommitQueue();
  // Commits and syncs what was submitted, then stops; what is submitted later
  // is not committed. The destructor does it too. From one thread.
  void Finish();

  // A new upload; `committed` is what the store has of its incarnation. An
  // older one of the same incarnation ends with ABORTED; what it has submitted
  // is still written.
  // Payloads are shared among uploads of one run and one `principal`, "" being
  // one too. `refusals` are told once more: the ack that named them may have
  // been lost.
  uint64_t Add(const std::string& session, const v1::Identity& identity,
               const std::string& principal, uint64_t committed,
               const Listener& listener,
               const std::vector<v1::RefusalRow>& refusals = {});
  void Remove(uint64_t upload);
  // A frame of the upload that CheckContent has let through; offers are
  // answered in their turn. False: the upload, or all of them together, hold
  // more than they should; read no more until `resume` is called.
  bool Submit(uint64_t upload, ReceivedFrame frame, const FrameSize& size);
  // The frame of that number will never be taken: it is committed empty, the
  // refusal is kept, and the ack says so and why. False as for Submit.
  bool Refuse(uint64_t upload, v1::RefusalRow refusal);

  // The level of `pressure` has changed: all uploads hear of it.
  void TellPayloadCredit();

  uint64_t pending_bytes() const;

 private:
  struct Pending {
    ReceivedFrame frame;
    FrameSize size;
    // Of a frame that is refused; `frame` is then its number only.
    std::optional<v1::RefusalRow> refusal;
    // Of a piece of a payload that there was no room for; likewise.
    bool no_room = false;
  };
  struct StepPlan {
    uint64_t epoch = 0;
    // Null: the plan is the agent's own, or not known any more.
    std::shared_ptr<RecordFilter> gate;
  };
  struct Upload {
    std::string session;
    v1::Identity identity;
    std::string principal;
    // Who shares payloads with it, for the leases.
    std::string sharing;
    Listener listener;
    std::deque<Pending> frames;
    // Bytes of frames not yet committed.
    uint64_t backlog = 0;
    bool paused = false;
    uint64_t received = 0;
    uint64_t committed = 0;
    uint64_t synced = 0;
    // Under which plan each step was begun.
    std::map<int64_t, StepPlan> plan_of_step;
    // Null: nothing of it was refused for want of room. The commit thread's.
    std::shared_ptr<NoRoomPayloads> refused;
    bool removed = false;
  };
  struct Taken {
    uint64_t id = 0;
    std::shared_ptr<Upload> upload;
    Pending pending;
    // Of a chunk that has another name in the store; else empty.
    std::string content_digest;
  };

  using Acks = std::map<std::shared_ptr<Upload>, v1::UploadAck>;

  void Run();
  // Nobody listens to it any more; `acks` are for those who send in its stead.
  void Retire(uint64_t id, Acks* acks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The frame no longer waits for the disk; the control plane is told too.
  void ReleaseBytes(Upload* upload, const Pending& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells those who are to send what others have promised and not sent.
  void HandOnClaims();
  // Takes offers out and answers them.
  void AnswerOffers(std::vector<Taken>* taken);
  std::vector<Taken> Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces records outside the plan by a count of them.
  void BeginStepGate(Upload* upload, int64_t step, uint64_t epoch);
  void ApplyGate(Upload* upload, v1::UploadFrame* frame);
  // Lets a call through or counts it as left out by `verdict`.
  static void CheckCalls(RecordFilter* gate, v1::UploadFrame* frame);
  // By the disk's pressure: pieces of payloads are emptied, and records that
  // refer to such payloads say that they are lost. In the order of the frames.
  void RefusePayloads(std::vector<Taken>* taken);
  bool HasRoomFor(const Upload& upload, const v1::PayloadChunk& chunk) const;
  void RefuseChunk(Taken* taken, Acks* acks);
  void MarkRefused(const Upload& upload, v1::UploadFrame* frame);
  std::shared_ptr<NoRoomPayloads> RefusedOf(const v1::Identity& identity);
  // UNSPECIFIED: nobody looks at the disk.
  v1::PayloadCredit PayloadCredit() const {
    return options_.pressure == nullptr ? v1::PAYLOAD_CREDIT_UNSPECIFIED
                                        : options_.pressure->credit();
  }
  static FrameToStore ToStore(const Taken& taken);
  absl::Status CommitTaken(const std::vector<Taken>& taken);
  bool Enqueue(uint64_t upload, Pending pending);
  void CommitOneByOne(std::vector<Taken>* taken);
  // Commits the frame's number without what it holds.
  absl::Status CommitRefused(const absl::Status& why, Taken* taken);
  // Which of the taken chunks belong to a payload that the store has as a whole.
  // False also where nobody needs to know.
  std::vector<bool> FindStored(const std::vector<Taken>& taken);
  void AckAll(const std::vector<Taken>& taken);
  void RunSync();
  void SyncNow();
  void NoteCommit(const absl::Status& status, const std::vector<Taken>& taken,
                  absl::Duration duration);
  void Fail(const absl::Status& status);
  uint64_t CreditNow() const;
  // Whether an upload that ignores its credit, or comes when everything is
  // full, is to be read on.
  bool MayRead(const Upload& upload) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Those that may be read again.
  std::vector<std::shared_ptr<Upload>> Unpause()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  FrameStore* const store_;
  IngestGate* const gate_;
  const Clock* const clock_;
  const std::function<void(const absl::Status&)> failed_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Set with stopping_: it ends timed waits.
  MonotonicEvent stop_;
  // Something is committed that is not synced yet.
  bool unsynced_ ABSL_GUARDED_BY(mutex_) = false;
  // Told when that comes true, and with all_committed_.
  MonotonicCondVar unsynced_came_;
  // Of it, without what a sync that failed was about.
  uint64_t unsynced_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Told with all_committed_, and when unsynced_bytes_ are enough.
  MonotonicCondVar sync_due_;
  // Nothing will be committed any more.
  bool all_committed_ ABSL_GUARDED_BY(mutex_) = false;
  bool work_ ABSL_GUARDED_BY(mutex_) = false;
  // Told with each work_.
  MonotonicCondVar work_came_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_upload_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  // Where the next turn begins.
  uint64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Upload>> uploads_ ABSL_GUARDED_BY(mutex_);
  PayloadLeases leases_ ABSL_GUARDED_BY(mutex_);
  // Of run and incarnation; outlives its uploads.
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<NoRoomPayloads>>
      no_room_payloads_ ABSL_GUARDED_BY(mutex_);
  ServiceThread sync_thread_;
  ServiceThread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_COMMIT_QUEUE_H_
