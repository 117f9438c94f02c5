// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for a reference: where a dump first differs from it.
#ifndef RANKPROBE_CLI_CLIENT_REFERENCE_DIAGNOSIS_H_
#define RANKPROBE_CLI_CLIENT_REFERENCE_DIAGNOSIS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/app.h"
#include "cli/client/aligned_dumps.h"
#include "cli/client/dump_input.h"
#include "cli/client/request_diagnosis.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct ComparedDumps {
  const DumpInput& target;
  // Names that the user gave.
  std::string input, reference;
  std::optional<int64_t> reference_job;
  // With rules, the reference is of another program.
  const AlignFlags& align;
  // Of a server: only the steps of this request. May be null.
  const RequestInDump* request = nullptr;
};

absl::Status DiagnoseReference(const Globals& globals, FileSystem* file_system,
                               const ComparedDumps& compared,
                               DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_REFERENCE_DIAGNOSIS_H_
