// SPDX-License-Identifier: Apache-2.0
// Names of entries without activation checkpoints and wrappers, by which runs
// with different checkpoints are compared. A checkpoint computes calls
// again in the backward, which shifts the numbers of all later calls of the
// same functions. Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_CHECKPOINT_NAMES_H_
#define RANKPROBE_ANALYSIS_COMPARE_CHECKPOINT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// Calls that the checkpoints of a dump computed again: their numbers, sorted,
// by the name before the number ("Tensor.mul", "Module.a.Linear.forward").
// Found by the stacks; empty without stack.json.
class RecomputedCalls {
 public:
  explicit RecomputedCalls(const DumpReader& dump);
  int64_t size() const;
  // Whether two runs computed the same calls again.
  bool operator==(const RecomputedCalls& other) const = default;
  // Returns the name that the entry has in a run without checkpoints, or nullopt
  // if it is one of these calls or its backward.
  std::optional<std::string> WithoutThem(absl::string_view entry) const;

 private:
  absl::flat_hash_map<std::string, std::vector<int64_t>> numbers_;
};

// Returns the entry without `_checkpoint_wrapped_module` and
// `_fsdp_wrapped_module` in its path.
std::string WithoutWrappers(absl::string_view entry);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_CHECKPOINT_NAMES_H_
