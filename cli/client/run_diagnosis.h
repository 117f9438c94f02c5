// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for a run in the archive: its values over steps, its
// rules, and the calls of the first step with a NaN or an infinity.
#ifndef RANKPROBE_CLI_CLIENT_RUN_DIAGNOSIS_H_
#define RANKPROBE_CLI_CLIENT_RUN_DIAGNOSIS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/app.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct DiagnosedRun {
  std::string run;
  // One of the jobs that used the name; absent: the newest.
  std::optional<int64_t> job;
};

// Returns the ranks whose process ended early, as DiagnoseDump().
absl::StatusOr<std::string> DiagnoseRun(const Globals& globals,
                                        FileSystem* file_system,
                                        const DiagnosedRun& asked,
                                        DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_DIAGNOSIS_H_
