// SPDX-License-Identifier: Apache-2.0
// Group commit: takes the frames of all uploads in turn, writes them with one
// FrameStore::Commit, acknowledges each upload, and syncs periodically.
//
// Ownership: one per collector; FrameStore, IngestGate and Clock outlive it.
// Threads: Add, Remove and Submit from any thread, none of them waits for the
// disk. Callbacks come from the commit thread and the sync thread, without
// locks held.
// Failure: a full disk is retried while the uploads wait; any other store error
// is final: all uploads end with it and `failed` is called once. A frame that
// the store refuses because of its content is committed empty, and so is a
// chunk of a payload that the disk has no room for.
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
    // Limit for the bytes of frames in one commit.
    uint64_t batch_bytes = 8 << 20;
    // Limit for the memory of all uploads' frames that wait for the disk;
    // credit shrinks near it.
    uint64_t pending_bytes = uint64_t{512} << 20;
    uint64_t credit_bytes = 16 << 20;
    absl::Duration sync_interval = absl::Seconds(1);
    // This many committed bytes are synced before the interval is over. Synced
    // pages can be dropped from the page cache, and writing reuses a little
    // memory faster than it fills much new memory.
    uint64_t sync_bytes = 32 << 20;
    absl::Duration retry_interval = absl::Milliseconds(500);
    // Beyond it a new upload ends with RESOURCE_EXHAUSTED.
    size_t max_uploads = 8192;
    // May be null; outlives the queue.
    IngestMetrics* metrics = nullptr;
    // May be null: then payloads are taken as long as there is any space.
    // Outlives the queue.
    DiskPressure* pressure = nullptr;
  };
  // Callbacks to an upload about its frames; ack and end only queue.
  struct Listener {
    std::function<void(const v1::UploadAck&)> ack;
    std::function<void(const absl::Status&)> end;
    // Called when there is room again after Submit returned false.
    std::function<void()> resume;
  };

  CommitQueue(const Options& options, FrameStore* store, IngestGate* gate,
              const Clock* clock,
              std::function<void(const absl::Status&)> failed);
  ~CommitQueue();
  // Commits and syncs what was submitted, then stops; frames submitted later
  // are not committed. The destructor calls it too. Called from one thread.
  void Finish();

  // Adds an upload; `committed` is the committed sequence of its incarnation in
  // the store. An older upload of the same incarnation ends with ABORTED; what
  // it has submitted is still written. Payloads are shared among uploads of one
  // run and one `principal`, where "" is a principal too. `refusals` are sent
  // once more, because the ack that named them may have been lost.
  uint64_t Add(const std::string& session, const v1::Identity& identity,
               const std::string& principal, uint64_t committed,
               const Listener& listener,
               const std::vector<v1::RefusalRow>& refusals = {});
  void Remove(uint64_t upload);
  // Submits a frame that CheckContent has accepted; offers are answered in
  // their turn. Returns false if the upload, or all of them together, hold more
  // than they should; then read no more until `resume` is called.
  bool Submit(uint64_t upload, ReceivedFrame frame, const FrameSize& size);
  // Commits the frame of that number empty and keeps the refusal, which the ack
  // contains. Returns false as Submit.
  bool Refuse(uint64_t upload, v1::RefusalRow refusal);

  // Called when the level of `pressure` has changed: notifies all uploads.
  void TellPayloadCredit();

  uint64_t pending_bytes() const;

 private:
  struct Pending {
    ReceivedFrame frame;
    FrameSize size;
    // Set for a refused frame; `frame` then has only its number.
    std::optional<v1::RefusalRow> refusal;
    // Set for a chunk of a payload that there was no room for; likewise.
    bool no_room = false;
  };
  struct StepPlan {
    uint64_t epoch = 0;
    // Null if the plan is the agent's own, or not known any more.
    std::shared_ptr<RecordFilter> gate;
  };
  struct Upload {
    std::string session;
    v1::Identity identity;
    std::string principal;
    // Run and principal: uploads with the same value share payloads, for the
    // leases.
    std::string sharing;
    Listener listener;
    std::deque<Pending> frames;
    // Bytes of frames not yet committed.
    uint64_t backlog = 0;
    bool paused = false;
    uint64_t received = 0;
    uint64_t committed = 0;
    uint64_t synced = 0;
    // The plan under which each step was begun.
    std::map<int64_t, StepPlan> plan_of_step;
    // Null if no part of it was refused because the disk was full. Used by the
    // commit thread.
    std::shared_ptr<NoRoomPayloads> refused;
    bool removed = false;
  };
  struct Taken {
    uint64_t id = 0;
    std::shared_ptr<Upload> upload;
    Pending pending;
    // Set for a chunk that has another digest in the store; else empty.
    std::string content_digest;
  };

  using Acks = std::map<std::shared_ptr<Upload>, v1::UploadAck>;

  void Run();
  // Removes an upload whose stream has ended; adds acks for the uploads that
  // now send its claimed payloads.
  void Retire(uint64_t id, Acks* acks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called when the frame no longer waits for the disk; updates the control
  // plane's count.
  void ReleaseBytes(Upload* upload, const Pending& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks other uploads for payloads that were claimed and not sent in time.
  void HandOnClaims();
  // Removes offers from `taken` and answers them.
  void AnswerOffers(std::vector<Taken>* taken);
  std::vector<Taken> Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces records outside the plan by a count of them.
  void BeginStepGate(Upload* upload, int64_t step, uint64_t epoch);
  void ApplyGate(Upload* upload, v1::UploadFrame* frame);
  // Lets a call through or counts it as left out by `verdict`.
  static void CheckCalls(RecordFilter* gate, v1::UploadFrame* frame);
  // Depending on the disk's level, empties chunks of payloads and marks such
  // payloads as lost in the records that refer to them, in the order of the
  // frames.
  void RefusePayloads(std::vector<Taken>* taken);
  bool HasRoomFor(const Upload& upload, const v1::PayloadChunk& chunk) const;
  void RefuseChunk(Taken* taken, Acks* acks);
  void MarkRefused(const Upload& upload, v1::UploadFrame* frame);
  std::shared_ptr<NoRoomPayloads> RefusedOf(const v1::Identity& identity);
  // UNSPECIFIED if the disk is not watched.
  v1::PayloadCredit PayloadCredit() const {
    return options_.pressure == nullptr ? v1::PAYLOAD_CREDIT_UNSPECIFIED
                                        : options_.pressure->credit();
  }
  static FrameToStore ToStore(const Taken& taken);
  absl::Status CommitTaken(const std::vector<Taken>& taken);
  bool Enqueue(uint64_t upload, Pending pending);
  void CommitOneByOne(std::vector<Taken>* taken);
  // Commits the frame's number without its content.
  absl::Status CommitRefused(const absl::Status& why, Taken* taken);
  // Returns which of the taken chunks belong to a payload that is already
  // complete in the store; also false if the answer is not needed.
  std::vector<bool> FindStored(const std::vector<Taken>& taken);
  void AckAll(const std::vector<Taken>& taken);
  void AckRefusals(const std::vector<Taken>& taken);
  void RunSync();
  void SyncNow();
  void NoteCommit(const absl::Status& status, const std::vector<Taken>& taken,
                  absl::Duration duration);
  void Fail(const absl::Status& status);
  uint64_t CreditNow() const;
  // Returns whether to continue reading an upload that ignores its credit, or
  // sends when everything is full.
  bool MayRead(const Upload& upload) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the uploads that may be read again.
  std::vector<std::shared_ptr<Upload>> Unpause()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  FrameStore* const store_;
  IngestGate* const gate_;
  const Clock* const clock_;
  const std::function<void(const absl::Status&)> failed_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Set together with stopping_ to end timed waits.
  MonotonicEvent stop_;
  // There are committed frames that are not synced yet.
  bool unsynced_ ABSL_GUARDED_BY(mutex_) = false;
  // Notified when unsynced_ becomes true, and with all_committed_.
  MonotonicCondVar unsynced_came_;
  // Bytes of them, without those of a failed sync.
  uint64_t unsynced_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Notified with all_committed_, and when unsynced_bytes_ reaches sync_bytes.
  MonotonicCondVar sync_due_;
  // Nothing more will be committed.
  bool all_committed_ ABSL_GUARDED_BY(mutex_) = false;
  bool work_ ABSL_GUARDED_BY(mutex_) = false;
  // Notified each time work_ is set.
  MonotonicCondVar work_came_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_upload_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  // The upload at which the next round begins.
  uint64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Upload>> uploads_ ABSL_GUARDED_BY(mutex_);
  PayloadLeases leases_ ABSL_GUARDED_BY(mutex_);
  // By run and incarnation; outlives the uploads of the incarnation.
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<NoRoomPayloads>>
      no_room_payloads_ ABSL_GUARDED_BY(mutex_);
  ServiceThread sync_thread_;
  ServiceThread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_COMMIT_QUEUE_H_
