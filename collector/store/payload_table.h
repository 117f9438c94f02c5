// SPDX-License-Identifier: Apache-2.0
// Payloads of an archive: which are complete, which were offered again
// recently, and how far each unfinished one has come. Chunks become rows of
// table k, or of table q until their sender has sent all of them.
// Threads: none of its own; the store's mutex guards it. Failure: the errors of
// the index and the segments; damaged data is dropped or marked.
#ifndef RANKPROBE_COLLECTOR_STORE_PAYLOAD_TABLE_H_
#define RANKPROBE_COLLECTOR_STORE_PAYLOAD_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/commit_work.h"
#include "collector/store/index.h"
#include "collector/store/partials.h"
#include "collector/store/payload_store.h"
#include "common/base/clock.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

class PayloadTable {
 public:
  PayloadTable(Index* index, PayloadStore* segments, const Clock* clock)
      : index_(index), segments_(segments), clock_(clock) {}

  absl::StatusOr<bool> IsWhole(uint32_t run, absl::string_view digest,
                               uint64_t length);
  // Marks a payload (key of table p) that a rank is about to refer to, so that
  // deletion spares it.
  void Touch(const std::string& key) {
    touched_[key] = clock_->MonotonicNanos();
  }
  bool TouchedSince(const std::string& key, int64_t since) const {
    const auto it = touched_.find(key);
    return it != touched_.end() && it->second > since;
  }
  void ForgetTouched(int64_t since) {
    absl::erase_if(touched_,
                   [since](const auto& t) { return t.second <= since; });
  }

  // Adds a verified chunk of a frame that `sender` sent.
  absl::Status AddChunk(v1::RunRow* run, uint64_t sender,
                        const v1::PayloadChunk& chunk,
                        absl::string_view content_digest, CommitWork* work);
  void Undo(CommitWork* work);
  // Drops states of unfinished payloads above the limit.
  void Trim() { partials_.Trim(); }

  // Records that the bytes of this row fail their checksum.
  void MarkDamaged(const std::string& key, const v1::ChunkRow& row);
  // Records that the bytes were read again and are correct.
  void MarkSound(const std::string& key);

  // Removes cached state of a payload (key of table p), of its unfinished
  // chunks (prefix of table q) or of a complete run.
  void Erase(const std::string& key) { whole_.erase(key); }
  void ErasePartials(const std::string& prefix) { partials_.Erase(prefix); }
  void EraseRun(uint32_t run);

 private:
  // `prefix` is that of the sender's chunks in table q.
  absl::StatusOr<Partial*> LoadPartial(const std::string& prefix,
                                       CommitWork* work);
  // Called when all bytes of one sender have arrived, with `digest` as their
  // digest: they become the payload, or are dropped.
  absl::Status FinishPayload(v1::RunRow* run, const v1::PayloadChunk& chunk,
                             const std::string& partial,
                             const std::string& digest,
                             absl::string_view content_digest,
                             CommitWork* work);
  // Adds the deletion of the chunks under `prefix` to the batch.
  absl::Status DropRows(const std::string& prefix, CommitWork* work);
  // Returns the row of table p if it exists and its `damaged` equals the
  // argument.
  std::optional<v1::PayloadRow> RowThatIs(bool damaged, const std::string& key);

  // Limit for cached states of unfinished payloads; a rank has one or two.
  static constexpr size_t kMaxPartials = 8192;

  Index* const index_;
  PayloadStore* const segments_;
  const Clock* const clock_;
  PartialTable partials_{kMaxPartials};
  absl::flat_hash_set<std::string> whole_;
  // When complete payloads were touched, by the monotonic clock.
  absl::flat_hash_map<std::string, int64_t> touched_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PAYLOAD_TABLE_H_
