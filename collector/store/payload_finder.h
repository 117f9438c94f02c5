// SPDX-License-Identifier: Apache-2.0
// Payloads found from the segments, without an index: the header of every chunk
// says which payload it belongs to. The chunks of a payload are assembled and
// checked against its digest, or against the names that the principals of its
// run give to such bytes.
//
// Ownership: of the rebuild; its arguments outlive it. Not thread-safe. Only
// reads. Failure: the first error of the disk; damage is not an error.
#ifndef RANKPROBE_COLLECTOR_STORE_PAYLOAD_FINDER_H_
#define RANKPROBE_COLLECTOR_STORE_PAYLOAD_FINDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/keys.h"
#include "collector/store/payload_store.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct SegmentFrame;

// Returns the name in the store for a payload that a principal sent under a
// digest (collector/ingest/payload_scope).
using PayloadNameFn = std::function<std::string(absl::string_view principal,
                                                absl::string_view digest)>;

class PayloadFinder {
 public:
  // Location of one piece of a payload.
  struct Piece {
    uint64_t offset = 0;
    v1::ChunkRow row;
  };
  struct Whole {
    std::vector<Piece> chain;
    std::string content_digest;
  };

  PayloadFinder(FileSystem* file_system, PayloadStore* store,
                PayloadNameFn name_of)
      : file_system_(file_system),
        store_(store),
        name_of_(std::move(name_of)) {}

  // Reads all segments. `on_damage` is called for each place that does not hold
  // a valid frame.
  absl::Status ReadSegments(
      const std::function<void(const std::string& place)>& on_damage);
  // Adds a principal that sent data to `run`.
  void AddPrincipal(uint32_t run, const std::string& principal) {
    principals_[run].insert(principal);
  }
  // Adds a payload, by its key of table p, even if no pieces are found.
  void AddKey(absl::string_view key) { found_[std::string(key)]; }

  // Returns the pieces by key of table p.
  const std::map<std::string, std::vector<Piece>>& found() const {
    return found_;
  }
  // Returns the pieces that make up one payload; none if they do not.
  absl::StatusOr<Whole> Assemble(const keys::PayloadParts& payload,
                                 const std::vector<Piece>& pieces);

 private:
  void Found(uint64_t segment, const SegmentFrame& frame);
  // Returns the content digest of the bytes if they are those of `payload`.
  absl::StatusOr<std::optional<std::string>> ContentOf(
      const std::vector<Piece>& chain, const keys::PayloadParts& payload);

  FileSystem* const file_system_;
  PayloadStore* const store_;
  const PayloadNameFn name_of_;
  std::map<std::string, std::vector<Piece>> found_;
  std::map<uint32_t, std::set<std::string>> principals_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PAYLOAD_FINDER_H_
