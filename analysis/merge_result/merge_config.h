// SPDX-License-Identifier: Apache-2.0
// Configuration of `merge_result`: a YAML file `api: [..]`, `compare_index:
// [..]`, and which rows an API means. Pure functions, and an immutable object.
#ifndef RANKPROBE_ANALYSIS_MERGE_RESULT_MERGE_CONFIG_H_
#define RANKPROBE_ANALYSIS_MERGE_RESULT_MERGE_CONFIG_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace re2 {
class RE2;
}

namespace rankprobe::analysis {

struct MergeConfig {
  std::vector<std::string> apis;
  // Columns; none: all that say how two values differ.
  std::vector<std::string> indices;
};

// INVALID_ARGUMENT in one line that begins with the path.
absl::StatusOr<MergeConfig> ReadMergeConfig(FileSystem* file_system,
                                            const std::string& path);

// The rows of an API: those whose name has it, anywhere, with a dot behind.
// As in msprobe it is a regular expression in which a dot is a dot.
class ApiPattern {
 public:
  // INVALID_ARGUMENT for an expression that is none.
  static absl::StatusOr<ApiPattern> Make(const std::string& api);
  bool Matches(absl::string_view row) const;
  const std::string& api() const { return api_; }

 private:
  std::string api_;
  // With the dot; as it stands if it has nothing of an expression.
  std::string text_;
  std::shared_ptr<const re2::RE2> expression_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_RESULT_MERGE_CONFIG_H_
