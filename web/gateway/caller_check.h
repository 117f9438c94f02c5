// SPDX-License-Identifier: Apache-2.0
// Authentication and authorization of the callers of a collector's page, each
// by a token and by the collector's rules.
#ifndef RANKPROBE_WEB_GATEWAY_CALLER_CHECK_H_
#define RANKPROBE_WEB_GATEWAY_CALLER_CHECK_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

struct Caller {
  std::string name;
  // "viewer", or "operator", who may also switch and start jobs.
  std::string role;
};

// Thread-safe; does not block.
class CallerCheck {
 public:
  virtual ~CallerCheck() = default;

  // `token` is "" where none was brought. UNAUTHENTICATED; PERMISSION_DENIED:
  // one who may not look.
  virtual absl::StatusOr<Caller> Identify(absl::string_view token) const = 0;
  // `path` is "/rankprobe.v1.ControlService/SetConfig". As Identify, and
  // PERMISSION_DENIED.
  virtual absl::Status MayCall(absl::string_view token,
                               absl::string_view path) const = 0;
  // Records in the audit log what an operator is about to do; the caller passes
  // the outcome to the returned function before it answers the operator. May
  // wait for the disk.
  using Outcome = std::function<void(const absl::Status& status)>;
  virtual Outcome Audit(absl::string_view token, absl::string_view peer,
                        absl::string_view action,
                        absl::string_view detail) const {
    return [](const absl::Status&) {};
  }
};

// PERMISSION_DENIED: `what` needs an operator. `check` null: everybody is one.
absl::Status CheckIsOperator(const CallerCheck* check, absl::string_view token,
                             absl::string_view what);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_CALLER_CHECK_H_
