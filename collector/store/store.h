// The archive of all runs: a LevelDB index and append-only payload segments
// under one data directory (docs/formats.md, "On disk").
//
// Ownership: one Store per data directory per machine; it holds the directory's
// lock until destroyed. The Clock and FileSystem outlive it.
// Threads: all methods are thread-safe. Commits are serialised inside, a Sync
// does not hold them up; the caller batches frames of many sessions into one
// Commit (group commit). Failure: a failed write makes the store read-only
// (sticky): every later Commit and Sync returns the first error until the store
// is reopened.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

struct StoreOptions {
  std::string data_dir;
  // A segment is closed when it would grow beyond this.
  uint64_t segment_bytes = uint64_t{1} << 30;
  uint64_t leveldb_write_buffer_bytes = 16 << 20;
  uint64_t leveldb_cache_bytes = 64 << 20;
  // Refuse writes (RESOURCE_EXHAUSTED, not sticky) below this much free disk.
  uint64_t min_free_bytes = uint64_t{256} << 20;
  // Largest payload accepted.
  uint64_t max_payload_bytes = uint64_t{64} << 30;
};

// One frame that passed admission, with the identity the collector stamped.
struct FrameToStore {
  const v1::Identity* identity = nullptr;
  const v1::UploadFrame* frame = nullptr;
};

// One process' view of one step; what `rank{R}` or `proc{pid}` holds.
struct StepKey {
  std::string run;
  int64_t step = 0;
  std::optional<int64_t> rank;
  int64_t pid = 0;
  uint64_t incarnation = 0;
};

// Orders from here on are of records that the session or the collector added
// to a step (losses); a rank's own records are numbered densely from 0.
inline constexpr uint64_t kFirstAddedOrder = uint64_t{1} << 62;

// What recovery found and did at Open.
struct RecoveryReport {
  uint64_t torn_bytes_dropped = 0;
  uint64_t dangling_payloads = 0;
  uint64_t segments = 0;
};

class Store {
 public:
  virtual ~Store() = default;

  // Opens or creates. FAILED_PRECONDITION: another process holds the lock
  // (named). DATA_LOSS: the index is corrupt. Unknown schema:
  // FAILED_PRECONDITION.
  static absl::StatusOr<std::unique_ptr<Store>> Open(
      const StoreOptions& options, FileSystem* file_system, const Clock* clock);

  virtual RecoveryReport recovery() const = 0;

  // Registers the incarnation; returns the highest sequence number of it that
  // is committed (0 for a new one). Calling again updates a changed rank.
  virtual absl::StatusOr<uint64_t> OpenIncarnation(
      const v1::Identity& identity) = 0;

  // Makes the frames COMMITTED: on return they survive a crash of this process.
  // Frames at or below an incarnation's committed sequence are dropped as
  // duplicates. All or nothing per call.
  virtual absl::Status Commit(absl::Span<const FrameToStore> frames) = 0;

  // Everything committed before the call is SYNCED on return.
  virtual absl::Status Sync() = 0;

  // The run holds all bytes of this payload.
  virtual bool HasPayload(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes) = 0;

  virtual absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() = 0;
  // Sorted by step, rank, incarnation. NOT_FOUND for an unknown run.
  virtual absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run) = 0;
  // All records of one process' step in order; stops at the callback's error.
  virtual absl::Status ForEachRecord(
      const StepKey& key,
      const std::function<absl::Status(const v1::Record&)>& callback) = 0;
  // Streams the payload's bytes in order, checking chunk CRCs (DATA_LOSS).
  // NOT_FOUND when the payload is not whole.
  virtual absl::Status ReadPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes,
      const std::function<absl::Status(absl::string_view)>& callback) = 0;

  // The plan in force per run, kept over restarts.
  virtual absl::Status SavePlan(const std::string& run,
                                const v1::PlanSpec& plan) = 0;
  virtual absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_H_
