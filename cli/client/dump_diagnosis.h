// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for dumps: calls that make a NaN or an infinity, and
// differences between replicas.
#ifndef RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_
#define RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

// Looks at the steps of `path` in their order until the first finding of each
// kind. Of a dump_path with several runs only at those that its newest run wrote,
// by manifest.json. given: how the user named the dump.
absl::Status DiagnoseDump(FileSystem* file_system, const std::string& path,
                          const std::string& given, DiagnosisReport* report);

// Of ranks of one step.
absl::Status DiagnoseOverflow(FileSystem* file_system, const DumpLayout& ranks,
                              int64_t step, DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_DIAGNOSIS_H_
