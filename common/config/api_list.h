// SPDX-License-Identifier: Apache-2.0
// The functions that a front end records, by the prefix of their entries: JSON,
// an object of lists ({"Functional": ["relu"]}), or the contents of msprobe's
// support_wrap_ops.yaml. Pure function; the text is not trusted.
#ifndef RANKPROBE_COMMON_CONFIG_API_LIST_H_
#define RANKPROBE_COMMON_CONFIG_API_LIST_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

inline constexpr size_t kMaxApiListBytes = 256 << 10;

// Prefixes in the order of the text; a function belongs to the first prefix
// that lists it.
using ApiList = std::vector<std::pair<std::string, std::vector<std::string>>>;

// Parses JSON if the text begins with '{': lists by prefix, or by the section
// names of support_wrap_ops.yaml. Otherwise parses YAML: block lists of names
// below those sections. `aten` and `npu_distributed` are skipped (eager PyTorch
// calls nothing by those names). INVALID_ARGUMENT, with the line or the prefix,
// for another form, an unknown prefix, or a list without a function.
absl::StatusOr<ApiList> ParseApiList(absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_API_LIST_H_
