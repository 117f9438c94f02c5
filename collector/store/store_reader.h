// SPDX-License-Identifier: Apache-2.0
// A store as its readers see it. Threads: as in ArchiveReader; only what the tables
// of what is being written know is read under their lock. Failure: the index's and
// the segments' errors.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_READER_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                           std::optional<int64_t> after,
                                           size_t most) override;
  absl::Status ForEachRecord(
      const StepKey& key,
      const std::function<absl::Status(const v1::Record&)>& callback) override;
  absl::Status TakeEachRecord(
      const StepKey& key,
      const std::function<absl::Status(v1::Record*)>& callback) override;
  bool HasPayload(const std::string& run, absl::string_view digest,
                  uint64_t length_bytes) override;
  std::string PayloadDamage(const std::string& run, absl::string_view digest,
                            uint64_t length_bytes) override;
  absl::Status ReadPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes,
      const std::function<absl::Status(absl::string_view)>& callback) override;
  std::optional<std::string> ContentDigest(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) override;
  absl::Status ForEachIncarnation(
      const std::string& run,
      const std::function<void(const v1::IncarnationRow&)>& callback) override;

 private:
  // Ranks, steps and records of the run.
  absl::Status CountSteps(uint32_t run, v1::RunInfo* info);
  // Nothing where it is not there or cannot be read.
  std::optional<v1::PayloadRow> PayloadRowOf(const std::string& run,
                                             absl::string_view digest,
                                             uint64_t length_bytes);

  StoreCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_READER_H_
