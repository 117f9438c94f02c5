// SPDX-License-Identifier: Apache-2.0
// A layout file's statements about the tensors of one run's ranks. Counts which
// of its rules were of use; not thread-safe.
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

  // INVALID_ARGUMENT when the recorded ranks of a step of `run` are not those of
  // the mesh.
  absl::Status CheckRanks(absl::string_view run,
                          absl::Span<const DumpPlace> ranks) const;

  // LayoutFacts::model_groups
  std::map<int64_t, int64_t> ModelGroups() const;

  // A call as rules see it.
  struct Call {
    absl::string_view name;
    absl::string_view parent;  // in the module tree; empty: none
  };

  // Gives `part` the mesh and the placements of the first rule that fits and
  // returns it; null: none does. `place` as EachLeaf says it. What has a
  // recorded mesh keeps that. FAILED_PRECONDITION: the rule does not fit the
  // tensor's shape, or says that it is each rank's own.
  absl::StatusOr<const PlacementRule*> Place(const Call& call,
                                             absl::string_view place,
                                             TensorPart* part);

  // The reason why a value that is no tensor is each rank's own; empty: it is
  // not.
  std::string WhyLocal(const Call& call, absl::string_view place);

  // "line 9 of layout.yaml"
  std::string NameOf(const PlacementRule& rule) const;
  // A line for each rule that nothing was placed by.
  std::vector<std::string> Unused() const;

 private:
  // The first rule that fits, which is of use then; or null.
  const PlacementRule* Find(const Call& call, absl::string_view place);
  // The ranks that share all of `rank`'s places but those on `dimensions`.
  DeviceMesh MeshOf(int64_t rank, const std::vector<size_t>& dimensions) const;

  std::string file_;
  SideLayout side_;
  std::vector<bool> used_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_GIVEN_LAYOUT_H_
