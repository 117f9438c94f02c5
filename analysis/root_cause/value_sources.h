// SPDX-License-Identifier: Apache-2.0
// Values that the calls of a rank have recorded so far, by their statistics. An
// input that is not among them was made by a call that is not recorded. A view
// or a transposed tensor has the same statistics as its base. One dump at a
// time.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUE_SOURCES_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUE_SOURCES_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "analysis/compare/verdict.h"

namespace rankprobe::analysis {

class ValueSources {
 public:
  void Clear();
  // Adds the rows of the target's next call.
  void Add(absl::string_view call, absl::Span<const RowPair> pairs);
  // Returns the places of input tensors, such as "input.0", that no earlier
  // call received or returned.
  std::vector<std::string> Unmade(absl::string_view call,
                                  absl::Span<const RowPair> pairs) const;
  // Returns the first call that returned the content of `row`, or an empty
  // text.
  std::string MakerOf(const DumpRow& row) const;
  // Returns the call that was added last; empty before the first.
  const std::string& last_call() const { return last_call_; }

 private:
  // Each value with the first call that returned it, or an empty name if it was
  // only received.
  absl::flat_hash_map<std::string, std::string> makers_;
  std::string last_call_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUE_SOURCES_H_
