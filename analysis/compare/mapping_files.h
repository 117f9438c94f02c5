// SPDX-License-Identifier: Apache-2.0
// Readers of the files that mapping flags name, for the options of a
// comparison. Used by the command line and by Python. Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_MAPPING_FILES_H_
#define RANKPROBE_ANALYSIS_COMPARE_MAPPING_FILES_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare/entry_match.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

// The path of a YAML file (empty if not given), or the names themselves.
using NameMapSource = std::variant<std::string, NameMap>;

struct MappingFiles {
  bool fuzzy = false;
  std::optional<std::string> layers;  // empty text: match by scope alone
  NameMapSource cells;
  NameMapSource data;
  std::string apis;
};

// Reads all mappings. Returns INVALID_ARGUMENT with one line for an invalid
// file or for mappings that exclude each other. `warnings` gets the reason if a
// layer mapping is not applied.
absl::StatusOr<MatchOptions> ReadMappings(FileSystem* file_system,
                                          const MappingFiles& files,
                                          std::vector<std::string>* warnings);

// Returns an error if dumps of this kind cannot be matched with `options`.
absl::Status CheckMappings(const DumpLayout& target,
                           const MatchOptions& options);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_MAPPING_FILES_H_
