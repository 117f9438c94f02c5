// SPDX-License-Identifier: Apache-2.0
// Append interface of an archive, for the frames of ranks (used by ingest).
// Ownership: the archive's. Threads: all methods are thread-safe; commits are
// serialised inside, and a Sync does not block them. The caller batches frames
// of many sessions into one Commit (group commit). Failure: after a failed
// write every later Commit and Sync returns the first error until the archive
// is opened again.
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
  // XXH3-128 of the bytes of a chunk's payload. Empty if it equals the chunk's
  // digest; set if that digest includes the principal.
  absl::string_view content_digest;
  // If not null, the frame's content is refused: `frame` has only its number,
  // which is committed together with this refusal.
  const v1::RefusalRow* refusal = nullptr;
  // frame->ByteSizeLong(); 0 if not computed yet.
  uint64_t bytes = 0;
  // The chunk's checksum was verified.
  bool chunk_verified = false;
};

// First order of records that the session or the collector added to a step
// (losses). A rank's own records are numbered densely from 0.
inline constexpr uint64_t kFirstAddedOrder = uint64_t{1} << 62;

class FrameStore {
 public:
  virtual ~FrameStore() = default;

  // Makes the frames COMMITTED: on return they survive a crash of this process.
  // Frames at or below an incarnation's committed sequence are dropped as
  // duplicates. Each call writes all frames or none. A record whose order
  // already exists in its step is not stored but counted as lost,
  // COLLECTOR_REFUSED; losses are kept whatever their order.
  virtual absl::Status Commit(absl::Span<const FrameToStore> frames) = 0;

  // Makes everything that was committed before the call SYNCED.
  virtual absl::Status Sync() = 0;

  // Like HasPayload, for a caller that is about to refer to the payload: it is
  // not freed before the quiet time has passed.
  virtual bool KeepPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_FRAME_STORE_H_
