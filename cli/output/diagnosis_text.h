// SPDX-License-Identifier: Apache-2.0
// Text of `diagnose` for people.
#ifndef RANKPROBE_CLI_OUTPUT_DIAGNOSIS_TEXT_H_
#define RANKPROBE_CLI_OUTPUT_DIAGNOSIS_TEXT_H_

#include <string>

#include "analysis/scan/scan.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {

// Prints the report on stdout. `ended` lists processes that ended early, or is
// empty. `limit` is the largest number of findings; 0 means all.
void PrintDiagnosis(const v1::DiagnoseReport& report, const std::string& ended,
                    int limit);

// Returns a text such as "is not what the optimizer left in the step before:
// norm 1.5, and was 1.6".
std::string ScanFindingText(const analysis::ScanFinding& finding);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_DIAGNOSIS_TEXT_H_
