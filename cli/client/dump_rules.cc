// SPDX-License-Identifier: Apache-2.0
#include "cli/client/dump_rules.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "analysis/calls/call_place.h"
#include "analysis/scan/trainings.h"
#include "cli/client/run_rules.h"
#include "cli/client/run_scope.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"

namespace rankprobe {
namespace {

// Cells over all ranks; a larger dump is not read.
constexpr size_t kMostCells = 4000000;

using analysis::RankCell;
using analysis::RankInput;
using analysis::RankSeries;

absl::Status ReadStep(FileSystem* file_system, const std::string& directory,
                      size_t step, size_t steps, RankSeries* rank) {
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<DumpReader> dump,
      DumpReader::Open(file_system, directory, {.monitored = true}));
  JsonDocument record;
  std::vector<DumpRow> rows;
  for (size_t i = 0; i < dump->size(); ++i) {
    RP_RETURN_IF_ERROR(dump->Read(i, &record));
    RP_RETURN_IF_ERROR(ReadRows(dump->name(i), dump->stats(), &record, &rows));
    for (const DumpRow& row : rows) {
      const JsonValue& norm = row.stats[kNorm];
      if (!row.has_dtype || !norm.is_number()) continue;
      std::vector<RankCell>& cells = rank->values[std::string(row.name)];
      cells.resize(steps);
      cells[step] = {true, norm.number, row.stats[kMean].number,
                     row.stats[kMax].number, row.stats[kMin].number};
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RankInput> ReadDump(FileSystem* file_system,
                                   const DumpLayout& layout) {
  RankInput input;
  std::map<int64_t, RankSeries> ranks;
  for (const DumpPlace& place : layout.places)
    input.steps.push_back(analysis::StepOf(place));
  std::sort(input.steps.begin(), input.steps.end());
  input.steps.erase(std::unique(input.steps.begin(), input.steps.end()),
                    input.steps.end());
  for (const DumpPlace& place : layout.places) {
    const auto at = std::lower_bound(input.steps.begin(), input.steps.end(),
                                     analysis::StepOf(place));
    RankSeries& rank = ranks[place.rank];
    rank.rank = place.rank;
    RP_RETURN_IF_ERROR(ReadStep(file_system, place.directory,
                                static_cast<size_t>(at - input.steps.begin()),
                                input.steps.size(), &rank));
    if (rank.values.size() * layout.places.size() > kMostCells)
      return RankInput();
  }
  for (auto& [number, rank] : ranks) input.ranks.push_back(std::move(rank));
  return input;
}

// Leaves one of the trainings.
void LeaveSteps(const analysis::Training& training, RankInput* input) {
  const auto first = absl::c_lower_bound(input->steps, training.first_step) -
                     input->steps.begin();
  const auto end = absl::c_upper_bound(input->steps, training.last_step) -
                   input->steps.begin();
  input->steps = {input->steps.begin() + first, input->steps.begin() + end};
  for (RankSeries& rank : input->ranks) {
    for (auto& [name, cells] : rank.values) {
      cells.resize(std::max(cells.size(), static_cast<size_t>(end)));
      cells = {cells.begin() + first, cells.begin() + end};
    }
  }
}

}  // namespace

absl::Status DiagnoseDumpByRules(FileSystem* file_system,
                                 const DumpLayout& layout,
                                 DiagnosisReport* report) {
  if (layout.debug) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(RankInput input, ReadDump(file_system, layout));
  RunScan scan;
  scan.input = NormsOf(input);
  scan.trainings = analysis::TrainingsOf(scan.input);
  if (scan.trainings.size() > 1) {
    LeaveSteps(analysis::LongestOf(scan.input, scan.trainings), &input);
    scan.input = NormsOf(input);
  }
  scan.head.set_steps(input.steps.size());
  const bool has_training = HasValuesOf(scan.input, "Training.");
  const bool has_parameters = HasValuesOf(scan.input, "Parameter.");
  if (!has_training && !has_parameters) return absl::OkStatus();
  scan.is_monitored_whole = has_training && has_parameters &&
                            HasValuesOf(scan.input, "Update.") &&
                            FollowEachOther(input.steps);
  NoteTrainings(scan, report);
  AddRules(AskRules(input), scan, report);
  return absl::OkStatus();
}

}  // namespace rankprobe
