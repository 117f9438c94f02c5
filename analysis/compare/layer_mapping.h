// SPDX-License-Identifier: Apache-2.0
// Pairs of calls of two models whose layers have different names, by rules such
// as `TransformerLayer: {attention: self_attn}`. docs/analysis.md, "Layer
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
  std::vector<std::string> from;  // components below the layer of the class
  std::string to;
};
// Maps a class name to its rules, the longest first.
using LayerRules = std::map<std::string, std::vector<LayerRule>>;

// Returns INVALID_ARGUMENT with one line if the file is not valid.
absl::StatusOr<LayerRules> ReadLayerRules(FileSystem* file_system,
                                          const std::string& path);

// Loads the file given by -lm. As in msprobe, a file whose content is not a set
// of rules adds a warning and returns nullopt. A file that is not .yaml or
// cannot be read is an error.
absl::StatusOr<std::optional<LayerRules>> LoadLayerMapping(
    FileSystem* file_system, const std::string& path,
    std::vector<std::string>* warnings);

// Maps the path of a module ("layers.0.attention") to its path in the
// reference, by the rules of the classes along the path. `classes` maps the
// paths of the target's modules to their classes.
std::string MapLayerPath(
    const LayerRules& rules,
    const absl::flat_hash_map<std::string, std::string>& classes,
    const std::string& path);

// Maps entry names of the target to those of the reference; an entry without a
// partner maps to "N/A".
absl::flat_hash_map<std::string, std::string> MapLayers(
    const LayerRules& rules, const DumpReader& target,
    const DumpReader& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_LAYER_MAPPING_H_
