// SPDX-License-Identifier: Apache-2.0
// Tokens of a server's requests, which a rule about tokens or `rankprobe flag`
// has written into run_card.json (docs/formats.md, "Dump layout"): the part of
// `diagnose` for them, and the reference of a rule. Pure functions of the files.
#ifndef RANKPROBE_CLI_CLIENT_REQUEST_TOKENS_H_
#define RANKPROBE_CLI_CLIENT_REQUEST_TOKENS_H_

#include <string>

#include "absl/status/status.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "rankprobe/v1/triggers.pb.h"

namespace rankprobe {

constexpr char kTokenRule[] = "tokens";

// Adds the first token of `request` at which its log probability or entropy
// broke, by rank; or says that none did, or that no tokens were kept.
absl::Status DiagnoseTokens(FileSystem* file_system, const DumpLayout& layout,
                            const std::string& request,
                            DiagnosisReport* report);

// Fills in the tokens of those answers of `reference` that have none. NOT_FOUND
// if the dump has no first token of such a request.
absl::Status ReadReferenceTokens(FileSystem* file_system,
                                 const DumpLayout& layout,
                                 v1::TokenReference* reference);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_REQUEST_TOKENS_H_
