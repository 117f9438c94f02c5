// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for the tokens of a server's request, which a rule
// about tokens or `rankprobe flag` has written into run_card.json
// (docs/formats.md, "Dump layout"). Pure functions of the files.
#ifndef RANKPROBE_CLI_CLIENT_REQUEST_TOKENS_H_
#define RANKPROBE_CLI_CLIENT_REQUEST_TOKENS_H_

#include <string>

#include "absl/status/status.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

constexpr char kTokenRule[] = "tokens";

// Adds the first token of `request` at which its log probability or entropy
// broke, by rank; or says that none did, or that no tokens were kept.
absl::Status DiagnoseTokens(FileSystem* file_system, const DumpLayout& layout,
                            const std::string& request,
                            DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_REQUEST_TOKENS_H_
