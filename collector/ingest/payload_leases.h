// SPDX-License-Identifier: Apache-2.0
// Assigns a payload that several ranks of a run offer at the same time to one
// upload: the first one; the others wait until it is there, or the first is
// gone or has sent nothing of it for a while.
//
// Ownership: the CommitQueue's. Not thread-safe: guarded by its lock.
// Failure: a claim that is not fulfilled in time is handed on; an upload that
// breaks many makes none any more. Bounded for each upload.
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
  // Claims in one upload's hands, and places in line, that are remembered.
  static constexpr size_t kMaxPerUpload = 8192;
  // How long the others wait for a sign of life; as long as agents do.
  static constexpr int64_t kPatienceNs = 2'000'000'000;
  // Broken one after the other; a payload that comes clears the score.
  static constexpr int kMaxBroken = 16;

  // Whether `upload` is to send it now. False: another does, and `upload`
  // hears of it by OnComplete, ReleaseAll or HandOn.
  bool Claim(const std::string& run, absl::string_view digest,
             uint64_t length_bytes, uint64_t upload, int64_t now_ns);
  bool empty() const { return leases_.empty(); }
  // Somebody waits, so that HandOn has to be called now and then.
  bool awaited() const { return !awaited_.empty(); }
  // A piece of it has come.
  void Progress(const std::string& run, absl::string_view digest,
                uint64_t length_bytes, int64_t now_ns);
  // The payload is in the store: who waited for it.
  std::vector<uint64_t> OnComplete(const std::string& run,
                                   absl::string_view digest,
                                   uint64_t length_bytes);
  // Who sends what another was to send.
  struct Reassignment {
    uint64_t upload = 0;
    std::string digest;
  };
  // Of leases that somebody has waited for in vain.
  std::vector<Reassignment> HandOn(int64_t now_ns);
  // Of an upload that has ended.
  std::vector<Reassignment> ReleaseAll(uint64_t upload, int64_t now_ns);

 private:
  // Run, digest, length.
  using Key = std::tuple<std::string, std::string, uint64_t>;
  struct Line {
    // The first is to send it.
    std::vector<uint64_t> uploads;
    // When it was told to, or a piece came.
    int64_t since_ns = 0;
  };

  // The first has broken its promise; false: nobody is left.
  bool DropFirst(const Key& key, Line* line, int64_t now_ns);

  std::map<Key, Line> leases_;
  std::map<uint64_t, std::set<Key>> of_upload_;
  std::map<uint64_t, int> broken_;
  // When to look at a claim that somebody waits for. Some may be gone.
  std::deque<std::pair<int64_t, Key>> awaited_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_PAYLOAD_LEASES_H_
