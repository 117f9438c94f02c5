// SPDX-License-Identifier: Apache-2.0
// The values of a dump as input of the rules (analysis/rules): those of
// dump.json, and those that task monitor wrote into debug.json.
#ifndef RANKPROBE_CLI_CLIENT_DUMP_RULES_H_
#define RANKPROBE_CLI_CLIENT_DUMP_RULES_H_

#include "absl/status/status.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

// Adds the findings of the rules over the steps of `layout`, and the rules that
// could not judge. Adds nothing for a dump without values of task monitor.
absl::Status DiagnoseDumpByRules(FileSystem* file_system,
                                 const DumpLayout& layout,
                                 DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_RULES_H_
