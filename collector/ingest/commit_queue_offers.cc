// SPDX-License-Identifier: Apache-2.0
// CommitQueue: offers of payloads, leases that pass to other uploads, and
// uploads that end.
#include <map>
#include <utility>

#include "collector/ingest/commit_queue.h"
#include "collector/ingest/payload_scope.h"

namespace rankprobe {

void CommitQueue::Retire(uint64_t id, Acks* acks) {
  const auto it = uploads_.find(id);
  for (const PayloadLeases::Reassignment& reassigned_to :
       leases_.ReleaseAll(id, clock_->MonotonicNanos())) {
    const auto other = uploads_.find(reassigned_to.upload);
    if (other != uploads_.end())
      (*acks)[other->second].add_wanted_digests(reassigned_to.digest);
  }
  // Received frames are still written, without acks.
  it->second->removed = true;
  if (it->second->frames.empty()) uploads_.erase(it);
}

void CommitQueue::HandOnClaims() {
  Acks acks;
  {
    absl::MutexLock lock(&mutex_);
    if (!leases_.awaited()) return;
    for (const PayloadLeases::Reassignment& reassigned_to :
         leases_.HandOn(clock_->MonotonicNanos())) {
      const auto other = uploads_.find(reassigned_to.upload);
      if (other != uploads_.end())
        acks[other->second].add_wanted_digests(reassigned_to.digest);
    }
  }
  for (const auto& [other, ack] : acks) other->listener.ack(ack);
}

void CommitQueue::AnswerOffers(std::vector<Taken>* taken) {
  std::map<std::shared_ptr<Upload>, v1::UploadAck> acks;
  std::vector<Taken> rest;
  for (Taken& t : *taken) {
    if (!t.pending.frame->has_offers()) {
      rest.push_back(std::move(t));
      continue;
    }
    const v1::PayloadOffers& offers = t.pending.frame->offers();
    const std::string& run = t.upload->identity.run();
    v1::UploadAck& ack = acks[t.upload];
    for (int i = 0; i < offers.digests_size(); ++i) {
      const std::string& digest = offers.digests(i);
      if (store_->KeepPayload(run, StoredDigest(t.upload->principal, digest),
                              offers.length_bytes(i))) {
        ack.add_have_digests(digest);
        continue;
      }
      // No upload has to wait for a payload that would be refused.
      const bool no_room =
          options_.pressure != nullptr &&
          options_.pressure->level() != v1::DiskState::LEVEL_ROOM;
      absl::MutexLock lock(&mutex_);
      if (t.upload->removed || no_room ||
          leases_.Claim(t.upload->sharing, digest, offers.length_bytes(i), t.id,
                        clock_->MonotonicNanos())) {
        ack.add_wanted_digests(digest);
      } else {
        ack.add_coming_digests(digest);
      }
    }
    absl::MutexLock lock(&mutex_);
    ReleaseBytes(t.upload.get(), t.pending);
  }
  *taken = std::move(rest);
  for (const auto& [upload, ack] : acks) upload->listener.ack(ack);
}

}  // namespace rankprobe
