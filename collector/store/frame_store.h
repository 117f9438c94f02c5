// SPDX-License-Identifier: Apache-2.0
// Append interface of an archive, for the frames of ranks (used by ingest).
// Ownership: the archive's. Threads: all methods are thread-safe; commits are
// serialised inside, a Sync does not hold them up. The caller batches frames of
// many sessions into one Commit (group commit). Failure: after a failed write
// every later Commit and Sync returns the first error until the archive is
// opened again.
#ifndef RANKPROBE_COLLECTOR_STORE_FRAME_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_FRAME_STORE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// One frame that passed admission, with the identity the collector stamped.
struct FrameToStore {
  const v1::Identity* identity = nullptr;
  const v1::UploadFrame* frame = nullptr;
  // XXH3-128 that the bytes of a chunk's payload have; empty: it is the chunk's
  // digest. Another one when that has the principal in it.
  absl::string_view content_digest;
  // Not null: what it held is refused. `frame` is its number and nothing else;
  // the number is committed and the refusal kept.
  const v1::RefusalRow* refusal = nullptr;
  // frame->ByteSizeLong(); 0: not known yet.
  uint64_t bytes = 0;
  // Its chunk has been compared with its checksum.
  bool chunk_verified = false;
};

// Orders from here on are of records that the session or the collector added
// to a step (losses); a rank's own records are numbered densely from 0.
inline constexpr uint64_t kFirstAddedOrder = uint64_t{1} << 62;

class FrameStore {
 public:
  virtual ~FrameStore() = default;

  // Makes the frames COMMITTED: on return they survive a crash of this process.
  // Frames at or below an incarnation's committed sequence are dropped as
  // duplicates. All or nothing per call. A record of an order that its step has
  // already is not stored but counted as lost, COLLECTOR_REFUSED; losses are
  // kept whatever their order.
  virtual absl::Status Commit(absl::Span<const FrameToStore> frames) = 0;

  // Everything committed before the call is SYNCED on return.
  virtual absl::Status Sync() = 0;

  // The same as HasPayload for somebody who is about to refer to it: it is not
  // freed before the quiet time has passed.
  virtual bool KeepPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_FRAME_STORE_H_
