// SPDX-License-Identifier: Apache-2.0
// Values that belong to one of several ranks that share experts: numbers of
// experts and of tokens, positions of tokens, and values computed from these. A
// layout may pass other arguments to its experts than a run on one rank does
// (weights of 1, which it multiplies by later), so such a value has no partner
// there. The class follows these values from call to call. One object for each
// step; used on one thread.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_OWN_VALUES_H_
#define RANKPROBE_ANALYSIS_LAYOUT_OWN_VALUES_H_

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "analysis/layout/layout_plan.h"

namespace rankprobe::analysis {

class OwnValues {
 public:
  // Begins the next call, in the order of the dump, inputs before outputs.
  // `experts` is the call of shared experts that contains it; if it is empty,
  // no value is local.
  void Begin(absl::string_view call, absl::string_view experts);
  bool inside() const { return !experts_.empty(); }

  // Checks the next value of the call, which is compared with `whole` (or
  // null). `joined` is the result of joining the parts, or null if that failed.
  // Returns why the value is local to each rank, or an empty text, and
  // remembers local values.
  std::string Why(const std::string& place, absl::Span<const TensorPart> parts,
                  const PartStats* joined, const TensorPart* whole);
  // Does the same for a number that is not a tensor.
  std::string WhyNumber(const std::string& place, bool equal);

 private:
  bool IsKnown(const std::string& place,
               absl::Span<const TensorPart> parts) const;
  void Add(const std::string& place, absl::Span<const TensorPart> parts);

  std::string experts_;
  std::string call_;
  bool backward_ = false;
  // Places of the forward calls in these experts:
  // "Tensor.div.0.forward.input_args.1".
  absl::flat_hash_set<std::string> places_;
  // Their tensors by type, size and statistics, because not all calls that
  // select or sort elements are recorded.
  absl::flat_hash_set<std::string> tensors_;
  // State of the inputs of the current call.
  bool own_input_ = false;
  bool own_floats_ = false;
  bool other_tensor_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_OWN_VALUES_H_
