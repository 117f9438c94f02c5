// SPDX-License-Identifier: Apache-2.0
// A file that describes how the ranks of a run share its tensors, for runs
// whose dumps do not record it (Megatron's layers hold plain tensors). Format:
// docs/formats.md, "Layout files". Immutable values.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_FILE_H_
#define RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/layout/layout_plan.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct PlacementRule {
  int line = 0;                 // in the file, from 1
  std::string entry;            // a pattern of call names, or their prefix
  std::string inside;           // the call that contains it; empty: any or none
  std::vector<std::string> at;  // "output.0"; empty: everywhere
  bool local = false;           // local to a rank, not part of the model
  // Placements by dimension of the mesh; a negative Placement::dim counts from
  // the end.
  std::vector<std::pair<size_t, Placement>> placements;
};

struct SideLayout {
  struct Dimension {
    std::string name;
    int64_t size = 1;
    bool data = false;      // its ranks have other data
    bool pipeline = false;  // its ranks have other layers
  };
  int line = 0;
  // The last dimension varies fastest with the rank.
  std::vector<Dimension> mesh;
  std::vector<PlacementRule> rules;  // the first that matches counts

  int64_t ranks() const;
};

struct LayoutFile {
  std::string path;
  // A file without sides sets both to the same layout.
  std::optional<SideLayout> target;
  std::optional<SideLayout> reference;
  // The file names the sides; then a side of one rank must fit, too.
  bool by_side = false;
};

// Returns INVALID_ARGUMENT with the file, the line and the reason if `text` is
// not valid.
absl::StatusOr<LayoutFile> ParseLayoutFile(const std::string& path,
                                           const std::string& text);
absl::StatusOr<LayoutFile> ReadLayoutFile(FileSystem* file_system,
                                          const std::string& path);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_FILE_H_
