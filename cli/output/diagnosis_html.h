// SPDX-License-Identifier: Apache-2.0
// The answer of `diagnose` as a self-contained page: no server, no script, no
// other file; for light and dark screens and for paper.
#ifndef RANKPROBE_CLI_OUTPUT_DIAGNOSIS_HTML_H_
#define RANKPROBE_CLI_OUTPUT_DIAGNOSIS_HTML_H_

#include <string>

#include "absl/time/time.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {

struct DiagnosisPage {
  // The input as the user named it: "run:train".
  std::string input;
  // The command that produced the answer.
  std::string command;
  // Processes that ended early, or empty.
  std::string ended;
  absl::Time time;
};

// Returns less than 1 MB: texts are cut, and findings beyond the limit are only
// counted.
std::string DiagnosisHtml(const v1::DiagnoseReport& report,
                          const DiagnosisPage& page);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_DIAGNOSIS_HTML_H_
