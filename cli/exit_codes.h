// SPDX-License-Identifier: Apache-2.0
// Exit codes of `rankprobe`; printed by --help.
#ifndef RANKPROBE_CLI_EXIT_CODES_H_
#define RANKPROBE_CLI_EXIT_CODES_H_

#include "absl/status/status.h"

namespace rankprobe {

enum ExitCode {
  kOk = 0,
  // A judging command found something or could not see all data; for other
  // commands: a rank did not follow, or the output has gaps.
  kPartial = 1,
  kBadUsage = 2,     // bad flags or config, a path that cannot be used
  kUnreachable = 3,  // no collector answers, or another program does
  kNotFound = 4,     // no such run, step or rank
  kRefused = 5,      // anything else the collector or this machine refuses
};

inline int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kInvalidArgument:
      return kBadUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
      return kUnreachable;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    default:
      return kRefused;
  }
}

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_EXIT_CODES_H_
