// SPDX-License-Identifier: Apache-2.0
// The statistics of chosen values of a run, one rank's step after another: from
// its rollup if that is valid, else from the records. Both give the same
// numbers.
// Threads: may run in several threads at once over one Store.
// Failure: INVALID_ARGUMENT for an invalid request, NOT_FOUND for an unknown
// run, CANCELLED, the visitor's first error; else the store's.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_STATISTICS_WALK_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_STATISTICS_WALK_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collector/archive/query_sources.h"
#include "collector/archive/run_steps.h"
#include "common/config/plan.h"
#include "dump_format/statistics.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

struct ValueSelection {
  std::string run;
  // Empty sets select all.
  IntSet steps, ranks;
  OfIncarnations incarnations;
  // As in QueryGridRequest.
  std::string match;
  v1::GridValues values = v1::GRID_VALUES_OUTPUTS;
};

// Selects the values of a query. Plain value, one thread at a time.
class ValueChooser {
 public:
  // INVALID_ARGUMENT if `match` is not valid.
  static absl::StatusOr<ValueChooser> Make(const std::string& match,
                                           v1::GridValues values);
  // Returns whether the value is selected; name() is then its name.
  bool Wants(bool given, absl::string_view entry, absl::string_view name);
  const std::string& name() const { return name_; }

 private:
  ValueChooser(std::string match, v1::GridValues values)
      : match_(std::move(match)),
        is_glob_(match_.find_first_of("*?") != std::string::npos),
        values_(values) {}

  std::string match_;
  bool is_glob_ = false;
  v1::GridValues values_ = v1::GRID_VALUES_OUTPUTS;
  std::string name_;
};

// A value of a call. Texts are valid during the visitor's call.
struct WalkedValue {
  absl::string_view entry;
  // Entry and value: "Module.fc.Linear.forward.0.output.0".
  absl::string_view name;
  // One for each requested statistic.
  absl::Span<const std::optional<double>> numbers;
};

class StatisticsVisitor {
 public:
  virtual ~StatisticsVisitor() = default;
  // Called first, with the rank-steps to come, by step and rank.
  virtual absl::Status OnBegin(const std::vector<v1::StepInfo>& steps) = 0;
  virtual absl::Status OnRankStep(const v1::StepInfo& step) = 0;
  // Called for the values of the last rank-step, in the order of dump.json.
  virtual absl::Status OnValue(const WalkedValue& value) = 0;
};

struct WalkReport {
  size_t rank_steps = 0;
  size_t incomplete_rank_steps = 0;
  size_t deleted_rank_steps = 0;
  size_t rolled_up_rank_steps = 0;
  // One line for each rank-step whose records cannot be read; they are
  // incomplete.
  std::vector<std::string> unreadable;
};

// `cancelled` is called before each step of a rank is read.
absl::StatusOr<WalkReport> WalkStatistics(const QuerySources& sources,
                                          const ValueSelection& selection,
                                          const std::vector<Stat>& stats,
                                          absl::FunctionRef<bool()> cancelled,
                                          StatisticsVisitor* visitor);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_STATISTICS_WALK_H_
