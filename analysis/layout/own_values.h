// SPDX-License-Identifier: Apache-2.0
// Values that belong to one rank of several that share experts: numbers of
// experts and of tokens, where tokens lie, and what is made of these. A layout
// may hand its experts other arguments than a run on one rank does (weights of
// 1, which it multiplies by later), so such a value has no partner there. Which
// values these are is followed from call to call. One object a step; used on
// one thread.
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
  // The next call, in the order of the dump, inputs before outputs. `experts`: the
  // call of shared experts that it was made in; empty: none, and nothing is own.
  void Begin(absl::string_view call, absl::string_view experts);
  bool inside() const { return !experts_.empty(); }

  // The next value of the call that is compared with `whole`, or null. `joined`:
  // what was made of the parts, null where nothing can be. Returns why it is each
  // rank's own, or an empty text; remembers which.
  std::string Why(const std::string& place, absl::Span<const TensorPart> parts,
                  const PartStats* joined, const TensorPart* whole);
  // The same of a number that is not a tensor.
  std::string WhyNumber(const std::string& place, bool equal);

 private:
  bool IsKnown(const std::string& place,
               absl::Span<const TensorPart> parts) const;
  void Add(const std::string& place, absl::Span<const TensorPart> parts);

  std::string experts_;
  std::string call_;
  bool backward_ = false;
  // Of the forward calls in these experts: "Tensor.div.0.forward.input_args.1".
  absl::flat_hash_set<std::string> places_;
  // Their tensors by type, size and statistics: calls that pick or sort elements are
  // not all recorded.
  absl::flat_hash_set<std::string> tensors_;
  // Inputs of the call so far.
  bool own_input_ = false;
  bool own_floats_ = false;
  bool other_tensor_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_OWN_VALUES_H_
