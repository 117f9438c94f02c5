// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/commit_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/ingest/payload_scope.h"
#include "collector/ingest/refusal.h"

namespace rankprobe {
namespace {

// How often claims of payloads are checked while an upload waits for one.
constexpr absl::Duration kClaimCheck = absl::Milliseconds(250);
constexpr char kNoRoom[] = "the collector's disk has no room for payloads";

void AddRefusal(const v1::RefusalRow& refusal, v1::UploadAck* ack) {
  v1::RefusedFrame* const refused = ack->add_refused_frames();
  refused->set_sequence(refusal.sequence());
  refused->set_reason(refusal.reason());
}

void AddNoRoom(uint64_t sequence, v1::UploadAck* ack) {
  v1::RefusedFrame* const refused = ack->add_refused_frames();
  refused->set_sequence(sequence);
  refused->set_reason(kNoRoom);
}

bool IsLast(const v1::PayloadChunk& chunk) {
  return chunk.offset_bytes() + chunk.data().size() >= chunk.length_bytes();
}

}  // namespace

CommitQueue::CommitQueue(const Options& options, FrameStore* store,
                         IngestGate* gate, const Clock* clock,
                         std::function<void(const absl::Status&)> failed)
    : options_(options),
      store_(store),
      gate_(gate),
      clock_(clock),
      failed_(std::move(failed)),
      sync_thread_([this] { RunSync(); }),
      thread_([this] { Run(); }) {}

CommitQueue::~CommitQueue() { Finish(); }

void CommitQueue::Finish() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    work_ = true;
  }
  work_came_.NotifyAll();
  stop_.Set();
  thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    all_committed_ = true;
  }
  unsynced_came_.NotifyAll();
  sync_due_.NotifyAll();
  sync_thread_.join();
}

uint64_t CommitQueue::Add(const std::string& session,
                          const v1::Identity& identity,
                          const std::string& principal, uint64_t committed,
                          const Listener& listener,
                          const std::vector<v1::RefusalRow>& refusals) {
  absl::Status broken;
  uint64_t id = 0;
  Acks acks;
  std::vector<Listener> older;
  std::vector<uint64_t> no_room;
  {
    absl::MutexLock lock(&mutex_);
    id = next_upload_++;
    std::vector<uint64_t> retired;
    for (const auto& [other, upload] : uploads_) {
      if (!upload->removed && upload->identity.run() == identity.run() &&
          upload->identity.incarnation() == identity.incarnation())
        retired.push_back(other);
    }
    for (const uint64_t other : retired) {
      older.push_back(uploads_[other]->listener);
      Retire(other, &acks);
    }
    if (uploads_.size() >= options_.max_uploads) {
      broken = absl::ResourceExhaustedError(
          absl::StrCat("more than ", options_.max_uploads, " uploads"));
    }
    auto upload = std::make_shared<Upload>();
    upload->session = session;
    upload->identity = identity;
    upload->principal = principal;
    // The separator is unique, because no run's name has a zero byte.
    upload->sharing =
        absl::StrCat(identity.run(), absl::string_view("\0", 1), principal);
    upload->received = upload->committed = committed;
    upload->listener = listener;
    if (const auto refused =
            no_room_payloads_.find({identity.run(), identity.incarnation()});
        refused != no_room_payloads_.end()) {
      upload->refused = refused->second;
      no_room = upload->refused->Frames();
    }
    if (broken.ok()) {
      uploads_[id] = std::move(upload);
      // Frames that it has committed before may be synced already: the next
      // sync reports that, and nothing else may cause one.
      if (committed > 0 && !unsynced_) {
        unsynced_ = true;
        unsynced_came_.NotifyAll();
      }
    }
    if (!broken_.ok()) broken = broken_;
  }
  for (const Listener& listening : older) {
    listening.end(absl::AbortedError(
        "a newer upload of this process has taken its place"));
  }
  for (const auto& [other, ack] : acks) other->listener.ack(ack);
  if (!broken.ok()) {
    listener.end(broken);
    return id;
  }
  v1::UploadAck ack;
  ack.set_received(committed);
  ack.set_committed(committed);
  ack.set_credit_bytes(CreditNow());
  for (const v1::RefusalRow& refusal : refusals) AddRefusal(refusal, &ack);
  for (const uint64_t sequence : no_room) AddNoRoom(sequence, &ack);
  // The level may change during the call, so repeat until it is current.
  do {
    ack.set_payload_credit(PayloadCredit());
    listener.ack(ack);
  } while (ack.payload_credit() != PayloadCredit());
  return id;
}

void CommitQueue::Remove(uint64_t upload) {
  Acks acks;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = uploads_.find(upload);
    if (it == uploads_.end() || it->second->removed) return;
    Retire(upload, &acks);
  }
  for (const auto& [other, ack] : acks) other->listener.ack(ack);
}

bool CommitQueue::MayRead(const Upload& upload) const {
  // An upload that sends little is not delayed by those that send much.
  if (upload.backlog < (64 << 10)) return true;
  return upload.backlog < 2 * options_.credit_bytes &&
         pending_ < options_.pending_bytes;
}

std::vector<std::shared_ptr<CommitQueue::Upload>> CommitQueue::Unpause() {
  std::vector<std::shared_ptr<Upload>> out;
  for (const auto& [id, upload] : uploads_) {
    if (!upload->paused || !MayRead(*upload)) continue;
    upload->paused = false;
    out.push_back(upload);
  }
  return out;
}

bool CommitQueue::Submit(uint64_t upload, ReceivedFrame frame,
                         const FrameSize& size) {
  Pending pending;
  pending.size = size;
  pending.frame = std::move(frame);
  return Enqueue(upload, std::move(pending));
}

bool CommitQueue::Refuse(uint64_t upload, v1::RefusalRow refusal) {
  Pending pending;
  pending.frame->set_sequence(refusal.sequence());
  pending.size.memory = refusal.reason().size() + sizeof(Pending);
  pending.refusal = std::move(refusal);
  return Enqueue(upload, std::move(pending));
}

bool CommitQueue::Enqueue(uint64_t upload, Pending pending) {
  absl::MutexLock lock(&mutex_);
  const auto it = uploads_.find(upload);
  if (it == uploads_.end() || it->second->removed) return true;
  pending_ += pending.size.memory;
  gate_->NoteReceived(it->second->session, pending.size.encoded,
                      static_cast<int64_t>(pending.size.memory));
  it->second->received =
      std::max(it->second->received, pending.frame->sequence());
  it->second->backlog += pending.size.memory;
  it->second->frames.push_back(std::move(pending));
  work_ = true;
  work_came_.NotifyAll();
  it->second->paused = !MayRead(*it->second);
  return !it->second->paused;
}

uint64_t CommitQueue::pending_bytes() const {
  absl::MutexLock lock(&mutex_);
  return pending_;
}

uint64_t CommitQueue::CreditNow() const {
  absl::MutexLock lock(&mutex_);
  const uint64_t used = std::min(pending_, options_.pending_bytes);
  const uint64_t share =
      (options_.pending_bytes - used) / std::max<size_t>(uploads_.size(), 1);
  // Each upload gets at least the 64 KiB that MayRead always allows.
  return std::clamp<uint64_t>(share, 64 << 10, options_.credit_bytes);
}

std::vector<CommitQueue::Taken> CommitQueue::Take() {
  std::vector<Taken> taken;
  uint64_t bytes = 0;
  // Takes one frame of each upload in turn, until the batch is full.
  for (bool any = true; any && bytes < options_.batch_bytes;) {
    any = false;
    auto it = uploads_.lower_bound(turn_);
    for (size_t i = 0, n = uploads_.size();
         i < n && bytes < options_.batch_bytes; ++i) {
      if (it == uploads_.end()) it = uploads_.begin();
      Upload& upload = *it->second;
      // The next batch continues after this upload, so that a full batch does
      // not favour the first ones.
      turn_ = it->first + 1;
      if (!upload.frames.empty()) {
        any = true;
        taken.push_back(
            {it->first, it->second, std::move(upload.frames.front()), ""});
        upload.frames.pop_front();
        bytes += taken.back().pending.size.encoded;
      }
      ++it;
    }
  }
  work_ = std::any_of(uploads_.begin(), uploads_.end(),
                      [](const auto& u) { return !u.second->frames.empty(); });
  return taken;
}

void CommitQueue::ReleaseBytes(Upload* upload, const Pending& pending) {
  // Fail() sets pending_ to 0, so the differences must not go below zero.
  pending_ -= std::min(pending_, pending.size.memory);
  upload->backlog -= std::min(upload->backlog, pending.size.memory);
  gate_->NoteReceived(upload->session, 0,
                      -static_cast<int64_t>(pending.size.memory));
}

FrameToStore CommitQueue::ToStore(const Taken& taken) {
  const Pending& pending = taken.pending;
  FrameToStore out;
  out.identity = &taken.upload->identity;
  out.frame = &*pending.frame;
  out.content_digest = taken.content_digest;
  if (pending.refusal.has_value()) out.refusal = &*pending.refusal;
  out.bytes = pending.size.encoded;
  out.chunk_verified = true;
  return out;
}

absl::Status CommitQueue::CommitTaken(const std::vector<Taken>& taken) {
  std::vector<FrameToStore> frames;
  frames.reserve(taken.size());
  for (const Taken& t : taken) frames.push_back(ToStore(t));
  return store_->Commit(frames);
}

absl::Status CommitQueue::CommitRefused(const absl::Status& why, Taken* taken) {
  Pending& pending = taken->pending;
  pending.refusal = RefusalOf(*pending.frame, why.message());
  ReceivedFrame empty;
  empty->set_sequence(pending.frame->sequence());
  pending.frame = std::move(empty);
  if (options_.metrics != nullptr) ++options_.metrics->refused_frames;
  // If the number itself is wrong, this commit fails too.
  return store_->Commit({ToStore(*taken)});
}

void CommitQueue::CommitOneByOne(std::vector<Taken>* taken) {
  std::vector<Taken> done;
  std::map<std::shared_ptr<Upload>, absl::Status> bad;
  for (Taken& t : *taken) {
    if (bad.count(t.upload) == 0) {
      absl::Status status = store_->Commit({ToStore(t)});
      if (absl::IsInvalidArgument(status)) status = CommitRefused(status, &t);
      if (status.ok()) {
        done.push_back(std::move(t));
        continue;
      }
      if (!absl::IsInvalidArgument(status) &&
          !absl::IsResourceExhausted(status))
        return Fail(status);
      bad[t.upload] = status;
    }
    // Later frames of this upload are dropped too: they would leave a gap.
    absl::MutexLock lock(&mutex_);
    ReleaseBytes(t.upload.get(), t.pending);
  }
  AckAll(done);
  for (const auto& [upload, status] : bad) {
    {
      absl::MutexLock lock(&mutex_);
      for (const Pending& pending : upload->frames)
        ReleaseBytes(upload.get(), pending);
      upload->frames.clear();
    }
    upload->listener.end(status);
  }
}

std::vector<bool> CommitQueue::FindStored(const std::vector<Taken>& taken) {
  bool leased = false;
  {
    absl::MutexLock lock(&mutex_);
    leased = !leases_.empty();
  }
  std::vector<bool> stored(taken.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i].pending.frame->has_chunk()) continue;
    const v1::PayloadChunk& chunk = taken[i].pending.frame->chunk();
    // The last chunk completes its payload, which matters only to an upload
    // that waits for it.
    if (IsLast(chunk) && !leased) continue;
    stored[i] = store_->KeepPayload(taken[i].upload->identity.run(),
                                    chunk.digest(), chunk.length_bytes());
  }
  return stored;
}

// The rank counts a refused frame by what it still holds, and it drops a frame
// once any thread has reported it as committed.
void CommitQueue::AckRefusals(const std::vector<Taken>& taken) {
  Acks acks;
  for (const Taken& t : taken) {
    if (t.pending.refusal.has_value())
      AddRefusal(*t.pending.refusal, &acks[t.upload]);
    if (t.pending.no_room)
      AddNoRoom(t.pending.frame->sequence(), &acks[t.upload]);
  }
  for (auto& [upload, ack] : acks) {
    ack.set_payload_credit(PayloadCredit());
    upload->listener.ack(ack);
  }
}

void CommitQueue::AckAll(const std::vector<Taken>& taken) {
  AckRefusals(taken);
  // Before the lock is taken, because the store's lock may be held while the
  // disk works. Leases are granted by this thread only, so what is not awaited
  // now is not awaited below.
  const std::vector<bool> stored = FindStored(taken);
  Acks acks;
  std::vector<std::shared_ptr<Upload>> resumed;
  const uint64_t credit = CreditNow();
  bool sync_due = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!unsynced_ && !taken.empty()) {
      unsynced_ = true;
      unsynced_came_.NotifyAll();
    }
    for (size_t i = 0; i < taken.size(); ++i) {
      const Taken& t = taken[i];
      ReleaseBytes(t.upload.get(), t.pending);
      unsynced_bytes_ += t.pending.size.encoded;
      t.upload->committed =
          std::max(t.upload->committed, t.pending.frame->sequence());
      v1::UploadAck& ack = acks[t.upload];
      ack.set_received(t.upload->received);
      ack.set_committed(t.upload->committed);
      ack.set_synced(t.upload->synced);
      ack.set_credit_bytes(credit);
      ack.set_payload_credit(PayloadCredit());
      if (!t.pending.frame->has_chunk()) continue;
      const v1::PayloadChunk& chunk = t.pending.frame->chunk();
      const bool last = IsLast(chunk);
      const std::string& digest =
          t.content_digest.empty() ? chunk.digest() : t.content_digest;
      if (!last && !leases_.empty()) {
        leases_.Progress(t.upload->sharing, digest, chunk.length_bytes(),
                         clock_->MonotonicNanos());
      }
      if (!stored[i]) continue;
      // The rest of a payload that is already complete need not be sent.
      if (!last) ack.add_have_digests(digest);
      for (const uint64_t id : leases_.OnComplete(t.upload->sharing, digest,
                                                  chunk.length_bytes())) {
        const auto other = uploads_.find(id);
        if (other != uploads_.end())
          acks[other->second].add_have_digests(digest);
      }
    }
    sync_due = unsynced_bytes_ >= options_.sync_bytes;
    resumed = Unpause();
    for (auto it = uploads_.begin(); it != uploads_.end();) {
      it = it->second->removed && it->second->frames.empty()
               ? uploads_.erase(it)
               : std::next(it);
    }
  }
  if (sync_due) sync_due_.NotifyAll();
  for (const auto& [upload, ack] : acks) upload->listener.ack(ack);
  for (const auto& upload : resumed) {
    if (upload->listener.resume) upload->listener.resume();
  }
}

// Separate from the commits, because a sync may take any time.
void CommitQueue::RunSync() {
  int64_t last_sync_ns = clock_->MonotonicNanos();
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return unsynced_ || all_committed_;
      };
      unsynced_came_.Wait(&mutex_, wanted);
      if (!unsynced_) return;
      const auto due = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return all_committed_ || unsynced_bytes_ >= options_.sync_bytes;
      };
      while (clock_->MonotonicNanos() - last_sync_ns <
             absl::ToInt64Nanoseconds(options_.sync_interval)) {
        if (sync_due_.WaitFor(&mutex_, options_.sync_interval / 4, due)) break;
      }
      unsynced_ = false;
      unsynced_bytes_ = 0;
    }
    last_sync_ns = clock_->MonotonicNanos();
    SyncNow();
  }
}

void CommitQueue::SyncNow() {
  const int64_t began = clock_->MonotonicNanos();
  std::vector<std::pair<std::shared_ptr<Upload>, uint64_t>> before;
  {
    // Read before the sync: frames committed during it may not be synced.
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, upload] : uploads_)
      before.emplace_back(upload, upload->committed);
  }
  if (const absl::Status status = store_->Sync(); !status.ok()) {
    if (!absl::IsResourceExhausted(status)) return Fail(status);
    // The disk is full: retry after the next interval, unless the queue ends.
    absl::MutexLock lock(&mutex_);
    unsynced_ = unsynced_ || !all_committed_;
    return;
  }
  if (options_.metrics != nullptr) {
    options_.metrics->sync_seconds.Add(
        absl::Nanoseconds(clock_->MonotonicNanos() - began));
  }
  for (const auto& [upload, committed] : before) {
    v1::UploadAck ack;
    {
      absl::MutexLock lock(&mutex_);
      if (upload->synced == committed) continue;
      upload->synced = committed;
      ack.set_received(upload->received);
      ack.set_committed(upload->committed);
      ack.set_synced(upload->synced);
    }
    upload->listener.ack(ack);
  }
}

void CommitQueue::NoteCommit(const absl::Status& status,
                             const std::vector<Taken>& taken,
                             absl::Duration duration) {
  IngestMetrics* const metrics = options_.metrics;
  if (metrics == nullptr) return;
  if (absl::IsResourceExhausted(status)) ++metrics->no_space_retries;
  if (!status.ok()) return;
  metrics->commit_seconds.Add(duration);
  uint64_t bytes = 0;
  for (const Taken& t : taken) bytes += t.pending.size.encoded;
  metrics->committed_bytes += bytes;
}

void CommitQueue::Fail(const absl::Status& status) {
  std::vector<std::shared_ptr<Upload>> uploads;
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = absl::UnavailableError(
        absl::StrCat("the archive has failed: ", status.message()));
    for (auto& [id, upload] : uploads_) {
      upload->frames.clear();
      uploads.push_back(upload);
    }
    pending_ = 0;
  }
  for (const auto& upload : uploads)
    upload->listener.end(absl::UnavailableError(status.message()));
  failed_(status);
}

void CommitQueue::Run() {
  for (;;) {
    std::vector<Taken> taken;
    bool stopping = false, broken = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return work_ || stopping_;
      };
      if (leases_.awaited()) {
        work_came_.WaitFor(&mutex_, kClaimCheck, wanted);
      } else {
        work_came_.Wait(&mutex_, wanted);
      }
      taken = Take();
      stopping = stopping_ && taken.empty();
      broken = !broken_.ok();
    }
    // After a failure further frames are dropped: all uploads have ended.
    if (broken) {
      if (stopping) return;
      continue;
    }
    HandOnClaims();
    AnswerOffers(&taken);
    for (Taken& t : taken) {
      ApplyGate(t.upload.get(), t.pending.frame.get());
      t.content_digest =
          RenamePayloads(t.upload->principal, t.pending.frame.get());
      if (t.pending.refusal.has_value()) {
        t.pending.refusal->set_payload_digest(StoredDigest(
            t.upload->principal, t.pending.refusal->payload_digest()));
      }
    }
    while (!taken.empty()) {
      // In each attempt, because the disk may have less room now.
      RefusePayloads(&taken);
      const int64_t began = clock_->MonotonicNanos();
      const absl::Status status = CommitTaken(taken);
      NoteCommit(status, taken,
                 absl::Nanoseconds(clock_->MonotonicNanos() - began));
      if (status.ok()) {
        AckAll(taken);
        break;
      }
      if (absl::IsInvalidArgument(status)) {
        // One upload's fault must not affect the others: commit one by one to
        // find it.
        CommitOneByOne(&taken);
        break;
      }
      if (!absl::IsResourceExhausted(status)) {
        Fail(status);
        break;
      }
      // The disk is full: keep everything and retry. Meanwhile the agents'
      // budgets decide what happens there.
      std::vector<std::shared_ptr<Upload>> waiting;
      {
        absl::MutexLock lock(&mutex_);
        for (const auto& [id, upload] : uploads_) waiting.push_back(upload);
      }
      v1::UploadAck ack;
      ack.set_retry_after_ms(static_cast<uint32_t>(
          absl::ToInt64Milliseconds(options_.retry_interval)));
      for (const auto& upload : waiting) upload->listener.ack(ack);
      if (stop_.WaitFor(options_.retry_interval)) return;
    }
    if (stopping) return;
  }
}

}  // namespace rankprobe
