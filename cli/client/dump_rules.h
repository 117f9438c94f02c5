// SPDX-License-Identifier: Apache-2.0
// The values of a dump as the rules (analysis/rules) read them: those of
// dump.json, and what task monitor wrote into the debug.json beside it.
#ifndef RANKPROBE_CLI_CLIENT_DUMP_RULES_H_
#define RANKPROBE_CLI_CLIENT_DUMP_RULES_H_

#include "absl/status/status.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

// Adds what the rules find over the steps of `layout`, and what they could not
// judge. Says nothing of a dump without values of task monitor.
absl::Status DiagnoseDumpByRules(FileSystem* file_system,
                                 const DumpLayout& layout,
                                 DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_RULES_H_
