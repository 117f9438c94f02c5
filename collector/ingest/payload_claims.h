// Which upload sends a payload that several ranks of a run offer at the same
// time: the first one; the others wait until it is there or the first is gone.
//
// Ownership: the CommitQueue's. Not thread-safe: guarded by its lock.
// Failure: a claim that is never fulfilled costs the others their patience
// (agents stop waiting by themselves). Bounded for each upload.
#ifndef RANKPROBE_COLLECTOR_INGEST_PAYLOAD_CLAIMS_H_
#define RANKPROBE_COLLECTOR_INGEST_PAYLOAD_CLAIMS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

class PayloadClaims {
 public:
  // Claims in one upload's hands, and places in line, that are remembered.
  static constexpr size_t kMaxPerUpload = 8192;

  // Whether `upload` is to send it now. False: another does, and `upload`
  // hears of it by Whole or Gone.
  bool Claim(const std::string& run, absl::string_view digest,
             uint64_t length_bytes, uint64_t upload);
  bool empty() const { return claims_.empty(); }
  // The payload is in the store: who waited for it.
  std::vector<uint64_t> Whole(const std::string& run, absl::string_view digest,
                              uint64_t length_bytes);
  // The upload has ended: who sends what it was to send.
  struct Heir {
    uint64_t upload = 0;
    std::string digest;
  };
  std::vector<Heir> Gone(uint64_t upload);

 private:
  // Run, digest, length.
  using Key = std::tuple<std::string, std::string, uint64_t>;

  // The first is to send it.
  std::map<Key, std::vector<uint64_t>> claims_;
  std::map<uint64_t, std::set<Key>> of_upload_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_PAYLOAD_CLAIMS_H_
