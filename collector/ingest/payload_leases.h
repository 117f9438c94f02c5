// SPDX-License-Identifier: Apache-2.0
// Assigns a payload that several ranks of a run offer at the same time to one
// upload: the first one; the others wait until it is stored, or the first has
// ended or has sent no part of it for a while.
//
// Ownership: the CommitQueue's. Not thread-safe: guarded by its lock.
// Failure: a claim that is not fulfilled in time passes to the next upload; an
// upload that breaks many gets no more claims. Bounded for each upload.
#ifndef RANKPROBE_COLLECTOR_INGEST_PAYLOAD_LEASES_H_
#define RANKPROBE_COLLECTOR_INGEST_PAYLOAD_LEASES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

class PayloadLeases {
 public:
  // Limit for one upload's claims and places in line.
  static constexpr size_t kMaxPerUpload = 8192;
  // How long the others wait for progress; as long as agents do.
  static constexpr int64_t kPatienceNs = 2'000'000'000;
  // Consecutive broken claims; a payload that arrives resets the count.
  static constexpr int kMaxBroken = 16;

  // Returns whether `upload` has to send the payload now. False: another upload
  // does, and `upload` is returned later by OnComplete, ReleaseAll or HandOn.
  bool Claim(const std::string& run, absl::string_view digest,
             uint64_t length_bytes, uint64_t upload, int64_t now_ns);
  bool empty() const { return leases_.empty(); }
  // Returns whether any upload waits, so that HandOn has to be called from time
  // to time.
  bool awaited() const { return !awaited_.empty(); }
  // Called when a chunk of it has arrived.
  void Progress(const std::string& run, absl::string_view digest,
                uint64_t length_bytes, int64_t now_ns);
  // Called when the payload is in the store; returns the uploads that waited
  // for it.
  std::vector<uint64_t> OnComplete(const std::string& run,
                                   absl::string_view digest,
                                   uint64_t length_bytes);
  // An upload that has to send what another was to send.
  struct Reassignment {
    uint64_t upload = 0;
    std::string digest;
  };
  // Reassigns leases whose waiting uploads have run out of patience.
  std::vector<Reassignment> HandOn(int64_t now_ns);
  // Releases the claims of an upload that has ended.
  std::vector<Reassignment> ReleaseAll(uint64_t upload, int64_t now_ns);

 private:
  // Run, digest, length.
  using Key = std::tuple<std::string, std::string, uint64_t>;
  struct Line {
    // The first has to send it.
    std::vector<uint64_t> uploads;
    // When it got the claim, or a chunk arrived.
    int64_t since_ns = 0;
  };

  // Removes the first, which has broken its claim; returns false if no upload
  // is left.
  bool DropFirst(const Key& key, Line* line, int64_t now_ns);

  std::map<Key, Line> leases_;
  std::map<uint64_t, std::set<Key>> of_upload_;
  std::map<uint64_t, int> broken_;
  // When to check claims that other uploads wait for. Some entries may be
  // obsolete.
  std::deque<std::pair<int64_t, Key>> awaited_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_PAYLOAD_LEASES_H_
