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
  // How the user named it.
  std::string given;
  // As FindDumps() takes it.
  std::optional<int64_t> job;
};

// Looks at the steps of `path` in their order until the first finding of each
// kind. Of a dump_path with several runs only at those that its newest run wrote,
// by manifest.json, or that the chosen job did. Returns the ranks whose process
// ended early, by the gaps of manifest.json: "rank1 (newest step here: 17)"; empty:
// none.
absl::StatusOr<std::string> DiagnoseDump(FileSystem* file_system,
                                         const DiagnosedDump& dump,
                                         DiagnosisReport* report);

struct OverflowLook {
  // An operator is known that made the NaN or the infinity.
  bool is_made = false;
  size_t calls = 0;
};
// Of ranks of one step.
absl::StatusOr<OverflowLook> DiagnoseOverflow(FileSystem* file_system,
                                              const DumpLayout& ranks,
                                              int64_t step,
                                              DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_
