// SPDX-License-Identifier: Apache-2.0
// Calls between modules are numbered by each process: of the stages of a pipeline
// each has its own first `Tensor.pow`, and what a layout calls by itself (DTensor,
// parallel experts) moves the numbers of all later calls. Their names in a run of
// another layout follow from what they are. Pure functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_CALL_NAMES_H_
#define RANKPROBE_ANALYSIS_LAYOUT_CALL_NAMES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// A call's name in a dump to that in the whole run, both without direction:
// "Tensor.pow.0" -> "Tensor.pow.2".
using CallNames = absl::flat_hash_map<std::string, std::string>;

// "Tensor.pow.2.forward" -> "Tensor.pow.2" and ".forward"; the second is empty for
// a name of another form.
std::pair<absl::string_view, absl::string_view> SplitDirection(
    absl::string_view name);

// By rank; nothing where a module tree is missing. A call that is not a module's gets
// the name of that call of `whole` which is of the same function in the same module,
// from the same line of the program and the same in order of these. Where stacks are
// missing, or both runs have as many calls that no line of the other run makes, their
// order tells alone. Gradients go with their call. A call that `whole` has not keeps
// its name where that is free, else it has `_extra` in it, or its rank where ranks
// are stages of a pipeline. What several stages call outside of modules (their
// optimizers) is nobody's. `wrappers` of the dumps' names are left out
// (NameWithoutSharding).
std::vector<CallNames> NamesInWhole(
    absl::Span<const std::unique_ptr<DumpReader>> dumps,
    absl::Span<const int64_t> ranks, const DumpReader& whole, int wrappers);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_CALL_NAMES_H_
