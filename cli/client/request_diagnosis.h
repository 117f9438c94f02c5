// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for one request of a server: its steps, by requests.json.
#ifndef RANKPROBE_CLI_CLIENT_REQUEST_DIAGNOSIS_H_
#define RANKPROBE_CLI_CLIENT_REQUEST_DIAGNOSIS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "analysis/align/token_rows.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

class RequestInDump {
 public:
  // wanted: its id, or a part of it. given: how the user named the dump.
  // INVALID_ARGUMENT naming the requests there are.
  static absl::StatusOr<RequestInDump> Find(FileSystem* file_system,
                                            const DumpLayout& layout,
                                            const std::string& given,
                                            const std::string& wanted);

  const std::string& id() const { return id_; }
  // "token 36", "tokens 0 to 31": what a step computes of it; empty: nothing.
  std::string TokensOf(int64_t step) const;

  // Looks at its steps in their order until the first with a call that makes a NaN
  // or an infinity.
  absl::Status Diagnose(FileSystem* file_system, DiagnosisReport* report) const;

 private:
  struct Step {
    DumpLayout ranks;
    analysis::RequestRows rows;
    // Requests whose rows are in the tensors of the step.
    int64_t together = 0;
  };
  std::string id_;
  std::map<int64_t, Step> steps_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_REQUEST_DIAGNOSIS_H_
