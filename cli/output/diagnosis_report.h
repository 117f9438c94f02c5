// SPDX-License-Identifier: Apache-2.0
// The report of `diagnose`, to which its parts add findings.
#ifndef RANKPROBE_CLI_OUTPUT_DIAGNOSIS_REPORT_H_
#define RANKPROBE_CLI_OUTPUT_DIAGNOSIS_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "analysis/scan/scan.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {

class DiagnosisReport {
 public:
  using Finding = v1::DiagnoseReport::Finding;

  // rank: -1 where it is of no single one. exact: not only unusual. It lives
  // until the next call.
  Finding* Add(std::string by, int64_t step, int64_t rank, std::string name,
               std::string what, bool exact);
  // What one must know before all of it.
  void Note(std::string what);
  void Healthy(std::string what);
  // record: the command that records it; empty where none helps.
  void Unjudged(std::string what, std::string record);
  // It is recorded: `command` judges it.
  void UnjudgedYet(std::string what, std::string command);

  // Of findings about a parameter or its update: the module that has it, known by
  // the values of its calls among these.
  void NameOwners(absl::Span<const analysis::ScanSeries> values);

  int findings() const { return report_.findings_size(); }
  // Exact ones first, earliest first, at one step by the nearness to a cause.
  v1::DiagnoseReport Take();

 private:
  v1::DiagnoseReport report_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_DIAGNOSIS_REPORT_H_
