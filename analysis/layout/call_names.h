// SPDX-License-Identifier: Apache-2.0
// Names that calls of functions would have in a run of another layout. Each
// process numbers such calls by itself: each stage of a pipeline has its own
// first `Tensor.pow`, and the calls that a layout adds (DTensor, parallel
// experts) shift the numbers of all later calls. The other run's name follows
// from the function, module and line of a call. Pure functions.
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

// Maps a call's name in a dump to its name in the complete run, both without
// direction: "Tensor.pow.0" -> "Tensor.pow.2".
using CallNames = absl::flat_hash_map<std::string, std::string>;

// Splits "Tensor.pow.2.forward" into "Tensor.pow.2" and ".forward"; the second
// part is empty for a name of another form.
std::pair<absl::string_view, absl::string_view> SplitDirection(
    absl::string_view name);

// Returns the names of each rank's calls, or nothing if a module tree is
// missing. A call of a function gets the name of the call of `whole` that has
// the same function, module and program line and the same position in the
// order of such calls. If stacks are missing, or if both runs have equally many
// calls whose lines the other run does not have, only the order decides.
// Gradients follow their call. A call that `whole` does not have keeps its name
// if that is unused; otherwise `_extra` is added, or the rank if ranks are
// stages of a pipeline. Calls that several stages make outside of modules
// (their optimizers) are not assigned. `wrappers` of the dumps' names are left
// out (NameWithoutSharding).
std::vector<CallNames> NamesInWhole(
    absl::Span<const std::unique_ptr<DumpReader>> dumps,
    absl::Span<const int64_t> ranks, const DumpReader& whole, int wrappers);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_CALL_NAMES_H_
