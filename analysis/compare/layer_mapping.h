// SPDX-License-Identifier: Apache-2.0
// Pairs the calls of two models whose layers have different names, by rules
// such as `TransformerLayer: {attention: self_attn}`. docs/analysis.md, "Layer
// mapping". Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_LAYER_MAPPING_H_
#define RANKPROBE_ANALYSIS_COMPARE_LAYER_MAPPING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

struct LayerRule {
  std::vector<std::string> from;  // components under the class' layer
  std::string to;
};
// Class name to its rules, the longest first.
using LayerRules = std::map<std::string, std::vector<LayerRule>>;

// INVALID_ARGUMENT in one line.
absl::StatusOr<LayerRules> ReadLayerRules(FileSystem* file_system,
                                          const std::string& path);

// What -lm names. As msprobe does, a file that is no rules is told in a warning
// and not applied: none. An error for one that is no .yaml or cannot be read.
absl::StatusOr<std::optional<LayerRules>> LoadLayerMapping(
    FileSystem* file_system, const std::string& path,
    std::vector<std::string>* warnings);

// The path of a module ("layers.0.attention") in the reference, by the rules of
// the classes on the way; `classes`: of the target's modules by their paths.
std::string MapLayerPath(
    const LayerRules& rules,
    const absl::flat_hash_map<std::string, std::string>& classes,
    const std::string& path);

// Entry names of the target to those of the reference side; an entry without a
// partner maps to "N/A".
absl::flat_hash_map<std::string, std::string> MapLayers(
    const LayerRules& rules, const DumpReader& target,
    const DumpReader& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_LAYER_MAPPING_H_
