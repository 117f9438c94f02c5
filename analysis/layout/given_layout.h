// SPDX-License-Identifier: Apache-2.0
// Placements that a layout file gives for the tensors of one run's ranks.
// Records which of its rules were used; not thread-safe.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_GIVEN_LAYOUT_H_
#define RANKPROBE_ANALYSIS_LAYOUT_GIVEN_LAYOUT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "analysis/layout/layout_file.h"
#include "analysis/layout/layout_plan.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

class GivenLayout {
 public:
  // `file` is the name of the file that `side` was read from.
  GivenLayout(std::string file, SideLayout side)
      : file_(std::move(file)),
        side_(std::move(side)),
        used_(side_.rules.size()) {}

  // Returns INVALID_ARGUMENT if the recorded ranks of a step of `run` differ
  // from those of the mesh.
  absl::Status CheckRanks(absl::string_view run,
                          absl::Span<const DumpPlace> ranks) const;

  // Returns the value for LayoutFacts::model_groups.
  std::map<int64_t, int64_t> ModelGroups() const;

  // The parts of a call that rules match.
  struct Call {
    absl::string_view name;
    absl::string_view parent;  // in the module tree; empty: none
  };

  // Sets the mesh and the placements of `part` from the first rule that matches
  // and returns that rule, or null if none matches. `place` is as in EachLeaf.
  // A recorded mesh is kept. Returns FAILED_PRECONDITION if the rule does not
  // fit the tensor's shape, or if it says that the tensor is local to each
  // rank.
  absl::StatusOr<const PlacementRule*> Place(const Call& call,
                                             absl::string_view place,
                                             TensorPart* part);

  // Returns the reason why a value that is not a tensor is local to each rank,
  // or an empty text if it is not local.
  std::string WhyLocal(const Call& call, absl::string_view place);

  // Returns a text such as "line 9 of layout.yaml".
  std::string NameOf(const PlacementRule& rule) const;
  // Returns a line for each rule that placed nothing.
  std::vector<std::string> Unused() const;

 private:
  // Returns the first rule that matches and marks it as used; null if none
  // does.
  const PlacementRule* Find(const Call& call, absl::string_view place);
  // Returns the ranks whose mesh coordinates equal those of `rank` except on
  // `dimensions`.
  DeviceMesh MeshOf(int64_t rank, const std::vector<size_t>& dimensions) const;

  std::string file_;
  SideLayout side_;
  std::vector<bool> used_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_GIVEN_LAYOUT_H_
