// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for dumps: calls that make a NaN or an infinity, and
// differences between replicas.
#ifndef RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_
#define RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

struct DiagnosedDump {
  std::string path;
  // The name that the user gave.
  std::string given;
  // As passed to FindDumps().
  std::optional<int64_t> job;
};

// Checks the steps of `path` in order until the first finding of each kind. If
// the dump_path has several runs, only the steps of its newest run, by
// manifest.json, or of the chosen job are checked. Returns the ranks whose
// process ended early, by the gaps of manifest.json, as in "rank1 (newest step
// here: 17)"; empty if there are none.
absl::StatusOr<std::string> DiagnoseDump(FileSystem* file_system,
                                         const DiagnosedDump& dump,
                                         DiagnosisReport* report);

struct OverflowLook {
  // The operator that made the NaN or the infinity is known.
  bool is_made = false;
  size_t calls = 0;
};
// Checks the ranks of one step.
absl::StatusOr<OverflowLook> DiagnoseOverflow(FileSystem* file_system,
                                              const DumpLayout& ranks,
                                              int64_t step,
                                              DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_
