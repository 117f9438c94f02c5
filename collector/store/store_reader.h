// SPDX-License-Identifier: Apache-2.0
// A store as its readers see it. Threads: as in ArchiveReader; only tables of
// rows being written are read under their lock. Failure: the errors of the
// index and the segments.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_READER_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collector/store/archive_reader.h"
#include "common/config/plan.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

struct StoreCore;

class StoreReader : public ArchiveReader {
 public:
  explicit StoreReader(StoreCore* core) : core_(core) {}

  std::vector<std::string> RunNames();
  absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() override;
  using ArchiveReader::ListSteps;
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run, const IntSet& steps) override;
  // Returns those of these steps and incarnations that exist.
  absl::StatusOr<std::vector<v1::StepInfo>> FindSteps(
      uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps);
  absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                           std::optional<int64_t> after,
                                           size_t most) override;
  absl::Status ForEachRecord(const StepKey& key,
                             const RecordFn& callback) override;
  absl::Status TakeEachRecord(const StepKey& key,
                              const TakeRecordFn& callback) override;
  bool HasPayload(const std::string& run, absl::string_view digest,
                  uint64_t length_bytes) override;
  std::string PayloadDamage(const std::string& run, absl::string_view digest,
                            uint64_t length_bytes) override;
  absl::Status ReadPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes,
                           const DataFn& callback) override;
  std::optional<std::string> ContentDigest(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) override;
  absl::Status ForEachIncarnation(const std::string& run,
                                  const IncarnationFn& callback) override;
  // Returns what the index has lost since the run was created; for an empty
  // run, all that it has lost.
  std::vector<std::string> Faults(const std::string& run) override;

 private:
  // Counts ranks, steps and records of the run.
  absl::Status CountSteps(uint32_t run, v1::RunInfo* info);
  // Returns nothing if the row does not exist or cannot be read.
  std::optional<v1::PayloadRow> PayloadRowOf(const std::string& run,
                                             absl::string_view digest,
                                             uint64_t length_bytes);

  StoreCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_READER_H_
