// SPDX-License-Identifier: Apache-2.0
// An archive as its readers see it: runs, steps, records, payloads. Export,
// ledger and other readers use only this interface, whether the archive is a
// collector's own (Store) or sealed in an object store (collector/sealed).
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

// One process' view of one step: the contents of `rank{R}` or `proc{pid}`.
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
  // An error of the callback ends the reading.
  using RecordFn = std::function<absl::Status(const v1::Record&)>;
  using TakeRecordFn = std::function<absl::Status(v1::Record*)>;
  using DataFn = std::function<absl::Status(absl::string_view)>;
  using IncarnationFn = std::function<void(const v1::IncarnationRow&)>;

  virtual ~ArchiveReader() = default;

  virtual absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() = 0;
  // Returns the steps sorted by step, rank, incarnation. A non-empty `steps`
  // selects steps; the others are not read. NOT_FOUND for an unknown run.
  virtual absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run, const IntSet& steps) = 0;
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(const std::string& run) {
    return ListSteps(run, IntSet());
  }
  // Returns the next `most` entries after step `after`, but never divides a
  // step. `more` is set if further steps follow.
  struct SomeSteps {
    std::vector<v1::StepInfo> steps;
    bool more = false;
  };
  virtual absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                                   std::optional<int64_t> after,
                                                   size_t most) = 0;
  // Calls `callback` for all records of one process' step in order, and stops
  // at its error.
  virtual absl::Status ForEachRecord(const StepKey& key,
                                     const RecordFn& callback) = 0;
  // The same for callers that modify the record: the callback owns it.
  virtual absl::Status TakeEachRecord(const StepKey& key,
                                      const TakeRecordFn& callback) {
    v1::Record copy;
    return ForEachRecord(key, [&](const v1::Record& record) {
      copy = record;
      return callback(&copy);
    });
  }

  // Returns whether the run has all bytes of this payload.
  virtual bool HasPayload(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes) = 0;
  // Returns where the payload's bytes are damaged; empty if no damage is known.
  virtual std::string PayloadDamage(const std::string& run,
                                    absl::string_view digest,
                                    uint64_t length_bytes) = 0;
  // Streams the payload's bytes in order and checks the CRC of each chunk.
  // DATA_LOSS if one does not match; the payload then counts as damaged and
  // incomplete until a rank sends it again. NOT_FOUND if the payload is not
  // complete.
  virtual absl::Status ReadPayload(const std::string& run,
                                   absl::string_view digest,
                                   uint64_t length_bytes,
                                   const DataFn& callback) = 0;

  // Returns the XXH3-128 of the payload's bytes. It differs from the digest in
  // the records if that one includes the principal. Empty if it is not known.
  virtual std::optional<std::string> ContentDigest(const std::string& /*run*/,
                                                   absl::string_view /*digest*/,
                                                   uint64_t /*length_bytes*/) {
    return std::nullopt;
  }

  // Calls `callback` for each process of the run. `dumping_in` is set if a
  // process was dumping when the store was last open or when its connection
  // ended, and has not been opened since.
  virtual absl::Status ForEachIncarnation(const std::string& run,
                                          const IncarnationFn& callback) = 0;

  // For an archive of several collectors: the collectors that could not be
  // asked for some data of the run (empty: of any run) since then, one line
  // each, for display. The answer lacks the data that only they have.
  virtual std::vector<std::string> Unavailable(const std::string& /*run*/,
                                               MonotonicTime /*since*/) {
    return {};
  }
  // Damage and missing data of the run in its storage that does not belong to
  // the records or payloads of one step, one line each, for display. The answer
  // lacks that data.
  virtual std::vector<std::string> Faults(const std::string& /*run*/) {
    return {};
  }
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ARCHIVE_READER_H_
