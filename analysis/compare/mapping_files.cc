// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/mapping_files.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

bool IsGiven(const NameMapSource& source) {
  const auto* const path = std::get_if<std::string>(&source);
  return path == nullptr || !path->empty();
}

absl::StatusOr<NameMap> Read(FileSystem* file_system,
                             const NameMapSource& source) {
  if (const auto* const path = std::get_if<std::string>(&source)) {
    return path->empty() ? NameMap() : ReadNameMap(file_system, *path);
  }
  return std::get<NameMap>(source);
}

}  // namespace

absl::StatusOr<MatchOptions> ReadMappings(FileSystem* file_system,
                                          const MappingFiles& files,
                                          std::vector<std::string>* warnings) {
  const int given = (files.layers.has_value() ? 1 : 0) +
                    (IsGiven(files.cells) ? 1 : 0) +
                    (IsGiven(files.data) ? 1 : 0) +
                    (files.apis.empty() ? 0 : 1) + (files.fuzzy ? 1 : 0);
  // -cm, -am and -fm can be combined, since each concerns another part of a
  // name.
  if (given > 1 && (files.layers.has_value() || IsGiven(files.data))) {
    return absl::InvalidArgumentError(
        "-lm and -dm define the pairs: give no other "
        "mapping and no -fm");
  }
  MatchOptions options;
  options.fuzzy = files.fuzzy;
  if (files.layers.has_value()) {
    options.layers.emplace();
    if (!files.layers->empty()) {
      RP_ASSIGN_OR_RETURN(
          options.layers,
          LoadLayerMapping(file_system, *files.layers, warnings));
    }
  }
  if (!files.apis.empty()) {
    RP_ASSIGN_OR_RETURN(options.apis, ReadApiRules(file_system, files.apis));
  }
  RP_ASSIGN_OR_RETURN(options.cells, Read(file_system, files.cells));
  RP_ASSIGN_OR_RETURN(options.rows, Read(file_system, files.data));
  return options;
}

absl::Status CheckMappings(const DumpLayout& target,
                           const MatchOptions& options) {
  if (!target.debug || !options.layers.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(target.path, ": a debug.json has no layers to map (-lm)"));
}

}  // namespace rankprobe::analysis
