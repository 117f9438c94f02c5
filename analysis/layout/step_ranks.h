// SPDX-License-Identifier: Apache-2.0
// The dumps of a step's ranks under the names that their calls have in a run on
// one rank: the ranks that recorded each call, the order of calls, the ranks
// that compute one model, and the calls with local experts. Immutable after
// Open; used on one thread.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_STEP_RANKS_H_
#define RANKPROBE_ANALYSIS_LAYOUT_STEP_RANKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "analysis/layout/call_names.h"
#include "analysis/layout/layout_plan.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

class StepRanks {
 public:
  struct Source {
    size_t rank = 0;  // of dumps()
    size_t entry = 0;
  };
  struct Call {
    std::string name;
    std::vector<Source> sources;  // by rank
  };

  // Opens the dumps. `whole` is as in JoinStep, `wrappers` as in
  // NameWithoutSharding.
  static absl::StatusOr<StepRanks> Open(FileSystem* file_system,
                                        absl::Span<const DumpPlace> ranks,
                                        const DumpReader* whole, int wrappers);

  absl::Span<const Call> calls() const { return calls_; }
  const DumpReader& dump(size_t rank) const { return *dumps_[rank]; }
  // Returns the call's name in a run on one rank.
  std::string NameOf(size_t rank, absl::string_view name) const;
  // Returns the name of the call that made this one; empty if there is none or
  // no module tree was recorded.
  std::string ParentOf(const Call& call) const;
  // Returns the module call that contains this one and whose experts are
  // distributed over the ranks; empty if there is none.
  std::string ExpertsOf(const Call& call) const;
  // Sets the facts that depend on the call.
  void Describe(const Call& call, LayoutFacts* facts) const;
  int64_t RankOf(size_t rank) const { return ranks_[rank]; }
  size_t size() const { return dumps_.size(); }
  // Returns a rank's note about the tensor at a place of a call, or null.
  const TensorNote* NoteOf(const Source& source, absl::string_view place) const;
  // Whether an input of a call may be uninitialised (UnwrittenTensors).
  bool IsUnwritten(const Source& source, absl::string_view place) const;
  // Returns the value for LayoutFacts::model_groups.
  const std::map<int64_t, int64_t>& model_groups() const { return groups_; }

 private:
  void Order(const DumpReader* whole);
  absl::Status ReadModules();

  std::vector<std::unique_ptr<DumpReader>> dumps_;
  std::vector<int64_t> ranks_;
  int wrappers_ = 0;
  std::vector<CallNames> call_names_;  // by rank, or none
  std::vector<absl::flat_hash_map<absl::string_view, absl::string_view>>
      parents_;  // as recorded; by rank
  std::vector<Call> calls_;
  std::map<int64_t, int64_t> groups_;
  absl::flat_hash_set<std::string> shared_experts_;  // ModuleOf their calls
};

// Opens a dump with its module tree, if it has one.
absl::StatusOr<std::unique_ptr<DumpReader>> OpenWithTree(
    FileSystem* file_system, const std::string& directory);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_STEP_RANKS_H_
