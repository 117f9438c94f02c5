// SPDX-License-Identifier: Apache-2.0
// Values that a rank's recorded calls have seen so far, by their statistics: an
// input that is none of them was made by a call that is not recorded. A view or
// a transposed tensor has the statistics of what it shows. One dump at a time.
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
  // The rows of the target's next call.
  void Add(absl::string_view call, absl::Span<const RowPair> pairs);
  // "input.0": tensors that went into the call and that no call before it had
  // or made.
  std::vector<std::string> Unmade(absl::string_view call,
                                  absl::Span<const RowPair> pairs) const;
  // The first call that has returned what `row` holds; empty: none has.
  std::string MakerOf(const DumpRow& row) const;
  // The last one that was added; empty before.
  const std::string& last_call() const { return last_call_; }

 private:
  // Each value that was seen, with the first call that returned it: empty, none
  // did.
  absl::flat_hash_map<std::string, std::string> makers_;
  std::string last_call_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUE_SOURCES_H_
