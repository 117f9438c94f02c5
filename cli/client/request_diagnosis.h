// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for one request of a server: its steps, by
// requests.json.
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
  // Finds the request whose id is or contains `wanted`. `given` is the dump's
  // name as the user gave it. Returns INVALID_ARGUMENT with the existing
  // requests.
  static absl::StatusOr<RequestInDump> Find(FileSystem* file_system,
                                            const DumpLayout& layout,
                                            const std::string& given,
                                            const std::string& wanted);

  const std::string& id() const { return id_; }
  // Returns the tokens that a step computes for the request, as in "token 36"
  // or "tokens 0 to 31"; empty if it computes none.
  std::string TokensOf(int64_t step) const;

  // Checks the request's steps in order until the first with a call that makes
  // a NaN or an infinity.
  absl::Status Diagnose(FileSystem* file_system, DiagnosisReport* report) const;

 private:
  struct Step {
    DumpLayout ranks;
    analysis::RequestRows rows;
    // Number of requests whose rows are in the tensors of the step.
    int64_t together = 0;
  };
  std::string id_;
  std::map<int64_t, Step> steps_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_REQUEST_DIAGNOSIS_H_
