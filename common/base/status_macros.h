// SPDX-License-Identifier: Apache-2.0
// RP_RETURN_IF_ERROR(expr), RP_ASSIGN_OR_RETURN(lhs, expr): early return of a
// failed absl::Status. Abseil 20220623 has none of its own.
#ifndef RANKPROBE_COMMON_BASE_STATUS_MACROS_H_
#define RANKPROBE_COMMON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RP_STATUS_CONCAT_INNER_(a, b) a##b
#define RP_STATUS_CONCAT_(a, b) RP_STATUS_CONCAT_INNER_(a, b)

#define RP_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::absl::Status rp_status_ = (expr);      \
    if (!rp_status_.ok()) return rp_status_; \
  } while (false)

#define RP_ASSIGN_OR_RETURN(lhs, expr)                                      \
  RP_ASSIGN_OR_RETURN_IMPL_(RP_STATUS_CONCAT_(rp_statusor_, __LINE__), lhs, \
                            expr)

#define RP_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                              \
  if (!statusor.ok()) return statusor.status();        \
  lhs = *std::move(statusor)

#endif  // RANKPROBE_COMMON_BASE_STATUS_MACROS_H_
