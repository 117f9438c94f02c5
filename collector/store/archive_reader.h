// SPDX-License-Identifier: Apache-2.0
// An archive as its readers see it: runs, steps, records, payloads. Export,
// ledger and what else makes something of them see no more than this, whether the
// archive is a collector's own (Store) or lies sealed in an object store
// (collector/sealed).
// Threads: all methods are thread-safe.
#ifndef RANKPROBE_COLLECTOR_STORE_ARCHIVE_READER_H_
#define RANKPROBE_COLLECTOR_STORE_ARCHIVE_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/monotonic_time.h"
#include "common/config/plan.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// One process' view of one step; what `rank{R}` or `proc{pid}` holds.
struct StepKey {
  std::string run;
  int64_t step = 0;
  std::optional<int64_t> rank;
  int64_t pid = 0;
  uint64_t incarnation = 0;
};

// The value of IncarnationRow.dumping_in for a process whose connection ended
// without a goodbye. It is even, and the numbers of collector lives are odd.
inline constexpr uint64_t kCutOffLife = 2;

class ArchiveReader {
 public:
  // An error ends the reading.
  using RecordFn = std::function<absl::Status(const v1::Record&)>;
  using TakeRecordFn = std::function<absl::Status(v1::Record*)>;
  using DataFn = std::function<absl::Status(absl::string_view)>;
  using IncarnationFn = std::function<void(const v1::IncarnationRow&)>;

  virtual ~ArchiveReader() = default;

  virtual absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() = 0;
  // Sorted by step, rank, incarnation. NOT_FOUND for an unknown run.
  // Of `steps` only, without looking at the others.
  virtual absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run, const IntSet& steps) = 0;
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(const std::string& run) {
    return ListSteps(run, IntSet());
  }
  // The next `most` of them behind `after`, but a step is not divided. `more`:
  // there are others behind these.
  struct SomeSteps {
    std::vector<v1::StepInfo> steps;
    bool more = false;
  };
  virtual absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                                   std::optional<int64_t> after,
                                                   size_t most) = 0;
  // All records of one process' step in order; stops at the callback's error.
  virtual absl::Status ForEachRecord(const StepKey& key,
                                     const RecordFn& callback) = 0;
  // The same for who takes them to pieces: each is the callback's.
  virtual absl::Status TakeEachRecord(const StepKey& key,
                                      const TakeRecordFn& callback) {
    v1::Record copy;
    return ForEachRecord(key, [&](const v1::Record& record) {
      copy = record;
      return callback(&copy);
    });
  }

  // The run holds all bytes of this payload.
  virtual bool HasPayload(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes) = 0;
  // Where its bytes are damaged; empty: nowhere that is known.
  virtual std::string PayloadDamage(const std::string& run,
                                    absl::string_view digest,
                                    uint64_t length_bytes) = 0;
  // Streams the payload's bytes in order, checking chunk CRCs (DATA_LOSS; the
  // payload is then known to be damaged and not whole any more, until a rank
  // sends it again). NOT_FOUND when the payload is not whole.
  virtual absl::Status ReadPayload(const std::string& run,
                                   absl::string_view digest,
                                   uint64_t length_bytes,
                                   const DataFn& callback) = 0;

  // XXH3-128 of the payload's bytes: the digest that records name, or another where
  // that has a principal in it. Nothing: it is not known here.
  virtual std::optional<std::string> ContentDigest(const std::string& /*run*/,
                                                   absl::string_view /*digest*/,
                                                   uint64_t /*length_bytes*/) {
    return std::nullopt;
  }

  // `dumping_in` is set where a process was dumping when the store was last
  // open or when its connection ended, and has not been opened since.
  virtual absl::Status ForEachIncarnation(const std::string& run,
                                          const IncarnationFn& callback) = 0;

  // Of an archive of several collectors: those that could not be asked for
  // something of the run (empty: of any) since then, one line each, for a person.
  // What they alone have is not in what was answered.
  virtual std::vector<std::string> Away(const std::string& /*run*/,
                                        MonotonicTime /*since*/) {
    return {};
  }
  // What of the run is damaged or missing where it is stored, as far as that is no
  // matter of one step's records or payloads: one line each, for a person. What it
  // had is not in what was answered.
  virtual std::vector<std::string> Faults(const std::string& /*run*/) {
    return {};
  }
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ARCHIVE_READER_H_
