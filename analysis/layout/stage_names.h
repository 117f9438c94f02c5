// SPDX-License-Identifier: Apache-2.0
// Calls between modules are numbered by each rank: of the stages of a pipeline
// each has its own first `Tensor.pow`. Their names in a run that has all stages
// follow from their modules. Pure functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_STAGE_NAMES_H_
#define RANKPROBE_ANALYSIS_LAYOUT_STAGE_NAMES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// A name in a dump to that in the whole run.
using CallNames = absl::flat_hash_map<std::string, std::string>;

// By rank; nothing where all ranks have the same modules, or a module tree is
// missing. Every call of a dump that is no module's gets the name of that call of
// `whole` which is of the same function, direction and ordinal in the same module;
// else one that `whole` has not, with the rank in it. What several ranks call
// outside of modules (an optimizer) is nobody's. `wrappers` of the dumps' names are
// left out (NameWithoutSharding).
std::vector<CallNames> StageNames(
    absl::Span<const std::unique_ptr<DumpReader>> dumps,
    absl::Span<const int64_t> ranks, const DumpReader& whole, int wrappers);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_STAGE_NAMES_H_
