// SPDX-License-Identifier: Apache-2.0
// The findings of a run in the archive, as `scan` and `diagnose` print them:
// requests the norms of its values, and the data that confirm a finding
// (largest values, means, groups of ranks). Makes blocking calls to the
// collector.
#ifndef RANKPROBE_CLI_CLIENT_RUN_SCAN_H_
#define RANKPROBE_CLI_CLIENT_RUN_SCAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "analysis/scan/scan.h"
#include "analysis/scan/trainings.h"
#include "cli/client/client.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

struct RunScanRequest {
  std::string run, match;
  std::vector<int64_t> ranks;
  std::optional<int64_t> from_step, to_step;
  // Only values that these processes recorded; all if empty.
  std::vector<uint64_t> incarnations;
  size_t window = analysis::ScanOptions().window;
  double factor = analysis::ScanOptions().factor;
};

struct RunScan {
  v1::GridHead head;
  analysis::ScanInput input;
  std::vector<analysis::ScanFinding> findings;
  // Of the requested steps. If there are several and no steps were requested,
  // only the longest is read.
  std::vector<analysis::Training> trainings;
  // Groups of ranks that hold the same parameters, if not all ranks do.
  std::vector<std::vector<int64_t>> groups;
  // Task monitor records each step with all values, so nothing more can be
  // recorded.
  bool is_monitored_whole = false;
};

// Returns NOT_FOUND if nothing was recorded that can be scanned.
absl::StatusOr<RunScan> ScanRun(const Globals& globals,
                                const RunScanRequest& request);

// Returns the ranks that recorded anything, in ascending order; a process that
// is not a rank is not included.
absl::StatusOr<std::vector<int64_t>> ReadRankNumbers(
    const Globals& globals, const RunScanRequest& request, const RunScan& scan);
// Called for each value of the requested ranks with its name, the steps, the
// number at each step and whether it was recorded.
using TakeSeries = absl::FunctionRef<void(
    const std::string&, const std::vector<int64_t>&, const std::vector<double>&,
    const std::vector<bool>&)>;
absl::Status ReadStatistic(const Globals& globals,
                           const RunScanRequest& request,
                           const std::string& statistic, TakeSeries take);
// Returns the largest and the smallest Norm over the ranks.
absl::StatusOr<analysis::ScanInput> ReadNorms(const Globals& globals,
                                              const RunScanRequest& request);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_SCAN_H_
