// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/caller_check.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe {

absl::Status CheckIsOperator(const CallerCheck* check, absl::string_view token,
                             absl::string_view what) {
  if (check == nullptr) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const Caller caller, check->Identify(token));
  if (caller.role == "operator") return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(caller.name, " has the role ",
                                                  caller.role, "; ", what,
                                                  " needs operator"));
}

}  // namespace rankprobe
