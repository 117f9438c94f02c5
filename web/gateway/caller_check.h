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
  // "viewer", or "operator", who may also switch recording and start jobs.
  std::string role;
};

// Thread-safe; its functions do not block, except Audit.
class CallerCheck {
 public:
  virtual ~CallerCheck() = default;

  // Returns the caller that `token` identifies; it is "" if the request had
  // none. Returns UNAUTHENTICATED, or PERMISSION_DENIED for a caller without
  // the right to read.
  virtual absl::StatusOr<Caller> Identify(absl::string_view token) const = 0;
  // Whether the caller may call `path`, such as
  // "/rankprobe.v1.ControlService/SetConfig". Returns the errors of Identify,
  // and PERMISSION_DENIED.
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

// Returns PERMISSION_DENIED if the caller is not an operator, which `what`
// requires. If `check` is null, all callers are operators.
absl::Status CheckIsOperator(const CallerCheck* check, absl::string_view token,
                             absl::string_view what);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_CALLER_CHECK_H_
