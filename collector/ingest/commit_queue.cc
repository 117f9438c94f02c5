#include "collector/ingest/commit_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/ingest/decoded_size.h"

namespace rankprobe {

CommitQueue::CommitQueue(const Options& options, Store* store,
                         ControlPlane* control, const Clock* clock,
                         std::function<void(const absl::Status&)> failed)
    : options_(options),
      store_(store),
      control_(control),
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
  stop_.Set();
  thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    all_committed_ = true;
  }
  drained_.Set();
  sync_thread_.join();
}

uint64_t CommitQueue::Add(const std::string& session,
                          const v1::Identity& identity, uint64_t committed,
                          const Listener& listener) {
  absl::Status broken;
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_upload_++;
    auto upload = std::make_shared<Upload>();
    upload->session = session;
    upload->identity = identity;
    upload->received = upload->committed = committed;
    upload->listener = listener;
    uploads_[id] = std::move(upload);
    broken = broken_;
  }
  if (!broken.ok()) {
    listener.end(broken);
    return id;
  }
  v1::UploadAck ack;
  ack.set_received(committed);
  ack.set_committed(committed);
  ack.set_credit_bytes(CreditNow());
  listener.ack(ack);
  return id;
}

void CommitQueue::Remove(uint64_t upload) {
  std::map<std::shared_ptr<Upload>, v1::UploadAck> acks;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = uploads_.find(upload);
    if (it == uploads_.end()) return;
    for (const PayloadClaims::Heir& heir : claims_.Gone(upload)) {
      const auto other = uploads_.find(heir.upload);
      if (other != uploads_.end())
        acks[other->second].add_wanted_digests(heir.digest);
    }
    // What has been received is still written; nobody hears of it.
    it->second->removed = true;
    if (it->second->frames.empty()) uploads_.erase(it);
  }
  for (const auto& [other, ack] : acks) other->listener.ack(ack);
}

bool CommitQueue::MayRead(const Upload& upload) const {
  // One that sends little is not held up by those that send much.
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

bool CommitQueue::Submit(uint64_t upload, v1::UploadFrame frame) {
  Pending pending;
  pending.bytes = frame.ByteSizeLong();
  pending.memory = DecodedSize(frame, pending.bytes);
  pending.frame = std::move(frame);
  return Enqueue(upload, std::move(pending));
}

bool CommitQueue::Refuse(uint64_t upload, uint64_t sequence,
                         std::string reason) {
  Pending pending;
  pending.frame.set_sequence(sequence);
  pending.memory = reason.size() + sizeof(Pending);
  pending.refused = std::move(reason);
  return Enqueue(upload, std::move(pending));
}

bool CommitQueue::Enqueue(uint64_t upload, Pending pending) {
  absl::MutexLock lock(&mutex_);
  const auto it = uploads_.find(upload);
  if (it == uploads_.end()) return true;
  pending_ += pending.memory;
  control_->NoteReceived(it->second->session, pending.bytes,
                         static_cast<int64_t>(pending.memory));
  it->second->received =
      std::max(it->second->received, pending.frame.sequence());
  it->second->backlog += pending.memory;
  it->second->frames.push_back(std::move(pending));
  work_ = true;
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
  return std::clamp<uint64_t>(share, 64 << 10, options_.credit_bytes);
}

std::vector<CommitQueue::Taken> CommitQueue::Take() {
  std::vector<Taken> taken;
  uint64_t bytes = 0;
  // One frame of each upload in turn, until the batch is full.
  for (bool any = true; any && bytes < options_.batch_bytes;) {
    any = false;
    auto it = uploads_.lower_bound(turn_);
    for (size_t i = 0, n = uploads_.size();
         i < n && bytes < options_.batch_bytes; ++i) {
      if (it == uploads_.end()) it = uploads_.begin();
      Upload& upload = *it->second;
      turn_ = it->first + 1;
      if (!upload.frames.empty()) {
        any = true;
        taken.push_back(
            {it->first, it->second, std::move(upload.frames.front())});
        upload.frames.pop_front();
        bytes += taken.back().pending.bytes;
      }
      ++it;
    }
  }
  work_ = std::any_of(uploads_.begin(), uploads_.end(),
                      [](const auto& u) { return !u.second->frames.empty(); });
  return taken;
}

void CommitQueue::LetGo(const Taken& t) {
  // A failed sync may have forgotten all that was pending.
  pending_ -= std::min(pending_, t.pending.memory);
  t.upload->backlog -= std::min(t.upload->backlog, t.pending.memory);
  control_->NoteReceived(t.upload->session, 0,
                         -static_cast<int64_t>(t.pending.memory));
}

void CommitQueue::AnswerOffers(std::vector<Taken>* taken) {
  std::map<std::shared_ptr<Upload>, v1::UploadAck> acks;
  std::vector<Taken> rest;
  for (Taken& t : *taken) {
    if (!t.pending.frame.has_offers()) {
      rest.push_back(std::move(t));
      continue;
    }
    const v1::PayloadOffers& offers = t.pending.frame.offers();
    const std::string& run = t.upload->identity.run();
    v1::UploadAck& ack = acks[t.upload];
    for (int i = 0; i < offers.digests_size(); ++i) {
      const std::string& digest = offers.digests(i);
      if (store_->KeepPayload(run, digest, offers.length_bytes(i))) {
        ack.add_have_digests(digest);
        continue;
      }
      absl::MutexLock lock(&mutex_);
      if (t.upload->removed ||
          claims_.Claim(run, digest, offers.length_bytes(i), t.id)) {
        ack.add_wanted_digests(digest);
      } else {
        ack.add_coming_digests(digest);
      }
    }
    absl::MutexLock lock(&mutex_);
    LetGo(t);
  }
  *taken = std::move(rest);
  for (const auto& [upload, ack] : acks) upload->listener.ack(ack);
}

absl::Status CommitQueue::CommitTaken(const std::vector<Taken>& taken) {
  std::vector<FrameToStore> frames;
  frames.reserve(taken.size());
  for (const Taken& t : taken)
    frames.push_back({&t.upload->identity, &t.pending.frame});
  return store_->Commit(frames);
}

absl::Status CommitQueue::CommitRefused(const absl::Status& why, Taken* taken) {
  v1::UploadFrame empty;
  empty.set_sequence(taken->pending.frame.sequence());
  taken->pending.frame = std::move(empty);
  taken->pending.refused = std::string(why.message());
  if (options_.metrics != nullptr) ++options_.metrics->refused_frames;
  // Where the number itself is wrong this fails too.
  return store_->Commit({{&taken->upload->identity, &taken->pending.frame}});
}

void CommitQueue::CommitOneByOne(std::vector<Taken>* taken) {
  std::vector<Taken> done;
  std::map<std::shared_ptr<Upload>, absl::Status> bad;
  for (Taken& t : *taken) {
    if (bad.count(t.upload) == 0) {
      absl::Status status =
          store_->Commit({{&t.upload->identity, &t.pending.frame}});
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
    absl::MutexLock lock(&mutex_);
    pending_ -= std::min(pending_, t.pending.memory);
    t.upload->backlog -= std::min(t.upload->backlog, t.pending.memory);
  }
  AckAll(done);
  for (const auto& [upload, status] : bad) {
    {
      absl::MutexLock lock(&mutex_);
      for (const Pending& pending : upload->frames)
        pending_ -= std::min(pending_, pending.memory);
      upload->backlog = 0;
      upload->frames.clear();
    }
    upload->listener.end(status);
  }
}

void CommitQueue::AckAll(const std::vector<Taken>& taken) {
  std::map<std::shared_ptr<Upload>, v1::UploadAck> acks;
  std::vector<std::shared_ptr<Upload>> resumed;
  const uint64_t credit = CreditNow();
  {
    absl::MutexLock lock(&mutex_);
    unsynced_ = unsynced_ || !taken.empty();
    for (const Taken& t : taken) {
      LetGo(t);
      t.upload->committed =
          std::max(t.upload->committed, t.pending.frame.sequence());
      v1::UploadAck& ack = acks[t.upload];
      ack.set_received(t.upload->received);
      ack.set_committed(t.upload->committed);
      ack.set_synced(t.upload->synced);
      ack.set_credit_bytes(credit);
      if (!t.pending.refused.empty()) {
        v1::RefusedFrame* const refused = ack.add_refused_frames();
        refused->set_sequence(t.pending.frame.sequence());
        refused->set_reason(t.pending.refused);
      }
      if (!t.pending.frame.has_chunk()) continue;
      const v1::PayloadChunk& chunk = t.pending.frame.chunk();
      const std::string& run = t.upload->identity.run();
      const bool last =
          chunk.offset_bytes() + chunk.data().size() >= chunk.length_bytes();
      if ((last && claims_.empty()) ||
          !store_->KeepPayload(run, chunk.digest(), chunk.length_bytes()))
        continue;
      // The rest of a payload that is whole need not come.
      if (!last) ack.add_have_digests(chunk.digest());
      for (const uint64_t id :
           claims_.Whole(run, chunk.digest(), chunk.length_bytes())) {
        const auto other = uploads_.find(id);
        if (other != uploads_.end())
          acks[other->second].add_have_digests(chunk.digest());
      }
    }
    resumed = Unpause();
    for (auto it = uploads_.begin(); it != uploads_.end();) {
      it = it->second->removed && it->second->frames.empty()
               ? uploads_.erase(it)
               : std::next(it);
    }
  }
  for (const auto& [upload, ack] : acks) upload->listener.ack(ack);
  for (const auto& upload : resumed) {
    if (upload->listener.resume) upload->listener.resume();
  }
}

// Beside the commits: a sync may take as long as the disk likes.
void CommitQueue::RunSync() {
  int64_t last_sync_ns = clock_->MonotonicNanos();
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return unsynced_ || all_committed_;
      };
      mutex_.Await(absl::Condition(&wanted));
      if (!unsynced_) return;
    }
    while (clock_->MonotonicNanos() - last_sync_ns <
           absl::ToInt64Nanoseconds(options_.sync_interval)) {
      if (drained_.WaitFor(options_.sync_interval / 4)) break;
    }
    {
      absl::MutexLock lock(&mutex_);
      unsynced_ = false;
    }
    last_sync_ns = clock_->MonotonicNanos();
    SyncNow();
  }
}

void CommitQueue::SyncNow() {
  const int64_t began = clock_->MonotonicNanos();
  std::vector<std::pair<std::shared_ptr<Upload>, uint64_t>> before;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, upload] : uploads_)
      before.emplace_back(upload, upload->committed);
  }
  if (const absl::Status status = store_->Sync(); !status.ok()) {
    if (!absl::IsResourceExhausted(status)) return Fail(status);
    // No room: again after the next interval, unless the queue ends.
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
  for (const Taken& t : taken) bytes += t.pending.bytes;
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
      mutex_.Await(absl::Condition(&wanted));
      taken = Take();
      stopping = stopping_ && taken.empty();
      broken = !broken_.ok();
    }
    if (broken) {
      if (stopping) return;
      continue;
    }
    AnswerOffers(&taken);
    for (Taken& t : taken) ApplyGate(t.upload.get(), &t.pending.frame);
    while (!taken.empty()) {
      const int64_t began = clock_->MonotonicNanos();
      const absl::Status status = CommitTaken(taken);
      NoteCommit(status, taken,
                 absl::Nanoseconds(clock_->MonotonicNanos() - began));
      if (status.ok()) {
        AckAll(taken);
        break;
      }
      if (absl::IsInvalidArgument(status)) {
        // One upload's fault must not be the others': find it.
        CommitOneByOne(&taken);
        break;
      }
      if (!absl::IsResourceExhausted(status)) {
        Fail(status);
        break;
      }
      // No space: hold everything and look again. The agents' budgets decide
      // what happens there meanwhile.
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
