// SPDX-License-Identifier: Apache-2.0
// The findings of a run in the archive, as `scan` and `diagnose` print them:
// requests the norms of its values, and the data that confirm a finding
// (largest values, means, groups of ranks). Blocking calls to the collector.
#ifndef RANKPROBE_CLI_CLIENT_RUN_SCAN_H_
#define RANKPROBE_CLI_CLIENT_RUN_SCAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "analysis/scan/scan.h"
#include "cli/client/client.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

struct RunScanRequest {
  std::string run, match;
  std::vector<int64_t> ranks;
  std::optional<int64_t> from_step, to_step;
  // What these processes recorded; empty: all.
  std::vector<uint64_t> incarnations;
  size_t window = analysis::ScanOptions().window;
  double factor = analysis::ScanOptions().factor;
};

struct RunScan {
  v1::GridHead head;
  analysis::ScanInput input;
  std::vector<analysis::ScanFinding> findings;
  // Ranks that hold the same parameters, where not all ranks do.
  std::vector<std::vector<int64_t>> groups;
  // Task monitor records each step with all values: nothing more can be recorded.
  bool is_monitored_whole = false;
};

// NOT_FOUND where nothing is recorded that could be scanned.
absl::StatusOr<RunScan> ScanRun(const Globals& globals,
                                const RunScanRequest& request);

// The ranks that recorded anything, ascending; of a process that is not a rank none.
absl::StatusOr<std::vector<int64_t>> ReadRankNumbers(
    const Globals& globals, const RunScanRequest& request, const RunScan& scan);
// Each value of the ranks that are asked for: its name, the steps, the number at
// each of them and whether it is there.
using TakeSeries = absl::FunctionRef<void(
    const std::string&, const std::vector<int64_t>&, const std::vector<double>&,
    const std::vector<bool>&)>;
absl::Status ReadStatistic(const Globals& globals,
                           const RunScanRequest& request,
                           const std::string& statistic, TakeSeries take);
// Statistic Norm: the largest and the smallest of the ranks.
absl::StatusOr<analysis::ScanInput> ReadNorms(const Globals& globals,
                                              const RunScanRequest& request);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_SCAN_H_
