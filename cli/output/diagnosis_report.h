// SPDX-License-Identifier: Apache-2.0
// The report of `diagnose`, to which its parts add findings.
#ifndef RANKPROBE_CLI_OUTPUT_DIAGNOSIS_REPORT_H_
#define RANKPROBE_CLI_OUTPUT_DIAGNOSIS_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "analysis/scan/scan.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {

class DiagnosisReport {
 public:
  using Finding = v1::DiagnoseReport::Finding;

  // Adds a finding. `rank` is -1 if it does not concern a single rank. `exact`
  // means certain, not only unusual. The pointer is valid until the next call.
  Finding* Add(std::string by, int64_t step, int64_t rank, std::string name,
               std::string what, bool exact);
  // Adds a line that is printed before the findings.
  void Note(std::string what);
  void Healthy(std::string what);
  // `record` is the command that records the missing data, or empty if there is
  // none.
  void Unjudged(std::string what, std::string record);
  // The data was recorded; `command` judges it.
  void UnjudgedYet(std::string what, std::string command);

  // For findings about a parameter or its update, sets the module that owns it,
  // which is found among `values` by the values of the module's calls.
  void NameOwners(absl::Span<const analysis::ScanSeries> values);

  int findings() const { return report_.findings_size(); }
  // Returns the report: exact findings first, then by step, and within a step
  // by their distance from a cause.
  v1::DiagnoseReport Take();

 private:
  v1::DiagnoseReport report_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_DIAGNOSIS_REPORT_H_
