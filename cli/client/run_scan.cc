// SPDX-License-Identifier: Apache-2.0
#include "cli/client/run_scan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/client/answer_stream.h"
#include "cli/client/grid_reply.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

constexpr uint32_t kMostCells = 1000000;
// With more ranks, the values of the individual ranks are not requested.
constexpr size_t kMostRanks = 64;

// Reads the rows of one query, checking each against the head.
absl::Status ReadGrid(const Client& client, const v1::QueryGridRequest& request,
                      v1::GridHead* head,
                      absl::FunctionRef<void(const v1::GridRow&)> take) {
  // The collector reads the records of the steps, however many.
  AnswerStream<v1::GridReply> reader(client, /*extra_seconds=*/3600,
                                     &ArchiveStub::QueryGrid, request);
  return ReadGridReply(
      &reader, [head](const v1::GridHead& came) { *head = came; },
      [&take](const v1::GridRow& row, int columns) {
        if (row.cells_size() != columns || row.counts_size() != columns ||
            row.ranks_size() != columns || row.non_finite_size() != columns)
          return false;
        take(row);
        return true;
      });
}

v1::QueryGridRequest RequestOf(const RunScanRequest& asked) {
  v1::QueryGridRequest request;
  request.set_run(asked.run);
  request.set_match(asked.match);
  request.set_values(v1::GRID_VALUES_ALL);
  request.set_max_cells(kMostCells);
  if (asked.from_step.has_value()) request.set_first_step(*asked.from_step);
  if (asked.to_step.has_value()) request.set_last_step(*asked.to_step);
  request.mutable_ranks()->Assign(asked.ranks.begin(), asked.ranks.end());
  request.mutable_incarnations()->Assign(asked.incarnations.begin(),
                                         asked.incarnations.end());
  return request;
}

// Returns the largest and the smallest of the requested values over the ranks.
absl::StatusOr<analysis::ScanInput> ReadCells(const Client& client,
                                              v1::QueryGridRequest request,
                                              v1::GridHead* head) {
  analysis::ScanInput input;
  absl::flat_hash_map<std::string, size_t> index;
  RP_RETURN_IF_ERROR(
      ReadGrid(client, request, head, [&](const v1::GridRow& row) {
        index.emplace(row.name(), input.values.size());
        analysis::ScanSeries& series = input.values.emplace_back();
        series.name = row.name();
        for (int i = 0; i < row.cells_size(); ++i) {
          analysis::ScanCell& cell = series.cells.emplace_back();
          cell.largest = cell.smallest = row.cells(i);
          cell.count = row.counts(i);
          cell.non_finite = row.non_finite(i);
          cell.largest_rank = cell.smallest_rank = row.ranks(i);
        }
      }));
  for (const int64_t step : head->first_steps()) input.steps.push_back(step);
  input.each_step = head->steps_per_column() <= 1;
  if (input.steps.empty()) return input;
  // The second query uses the same columns, although the run may continue.
  request.set_first_step(head->first_steps(0));
  request.set_last_step(*head->last_steps().rbegin());
  request.set_reducer(v1::GRID_REDUCER_MIN);
  v1::GridHead second;
  RP_RETURN_IF_ERROR(
      ReadGrid(client, request, &second, [&](const v1::GridRow& row) {
        const auto it = index.find(row.name());
        if (it == index.end() ||
            second.first_steps_size() != head->first_steps_size())
          return;
        std::vector<analysis::ScanCell>& cells = input.values[it->second].cells;
        for (int i = 0; i < row.cells_size(); ++i) {
          analysis::ScanCell& cell = cells[static_cast<size_t>(i)];
          // A rank that connected between the two queries is in only one
          // answer.
          if (cell.count != row.counts(i)) continue;
          cell.smallest = row.cells(i);
          cell.smallest_rank = row.ranks(i);
        }
      }));
  return input;
}

bool HasMoves(const std::vector<analysis::ScanFinding>& found) {
  return absl::c_any_of(found, [](const analysis::ScanFinding& finding) {
    return finding.kind == analysis::ScanKind::kMove ||
           finding.kind == analysis::ScanKind::kRankMoves;
  });
}

// Determines by their means which values are single numbers that may pass
// through 0.
absl::Status ReadSigns(const Globals& globals, const RunScanRequest& asked,
                       const v1::GridHead& head, analysis::ScanInput* input) {
  v1::QueryGridRequest request = RequestOf(asked);
  request.set_statistic("Mean");
  request.set_first_step(head.first_steps(0));
  request.set_last_step(*head.last_steps().rbegin());
  v1::GridHead of_means;
  RP_ASSIGN_OR_RETURN(
      const analysis::ScanInput read,
      ReadCells(Client(globals), std::move(request), &of_means));
  absl::flat_hash_map<std::string, const std::vector<analysis::ScanCell>*>
      means;
  for (const analysis::ScanSeries& series : read.values)
    means.emplace(series.name, &series.cells);
  for (analysis::ScanSeries& series : input->values) {
    const auto it = means.find(series.name);
    series.passes_zero =
        it != means.end() && analysis::MayPassZero(series, *it->second);
  }
  return absl::OkStatus();
}

// Determines which infinities are only -Infinity, in values that may be masks.
absl::Status ReadMasks(const Globals& globals, const RunScanRequest& asked,
                       const v1::GridHead& head, analysis::ScanInput* input) {
  absl::flat_hash_map<std::string, std::vector<analysis::ScanCell>*> masks;
  const auto is_infinite = [](const analysis::ScanSeries& series) {
    return absl::c_any_of(series.cells, [](const analysis::ScanCell& cell) {
      return cell.non_finite > 0 && std::isinf(cell.largest);
    });
  };
  absl::flat_hash_set<absl::string_view> given;
  for (const analysis::ScanSeries& series : input->values) {
    if (absl::StrContains(series.name, ".input.") && is_infinite(series))
      given.insert(analysis::ForwardOf(series.name));
  }
  for (analysis::ScanSeries& series : input->values) {
    if (is_infinite(series) && analysis::MayBeMask(series.name, given))
      masks.emplace(series.name, &series.cells);
  }
  if (masks.empty()) return absl::OkStatus();
  v1::QueryGridRequest request = RequestOf(asked);
  request.set_statistic("Max");
  request.set_first_step(head.first_steps(0));
  request.set_last_step(*head.last_steps().rbegin());
  v1::GridHead of_largest;
  return ReadGrid(
      Client(globals), request, &of_largest, [&](const v1::GridRow& row) {
        const auto it = masks.find(row.name());
        if (it == masks.end()) return;
        std::vector<analysis::ScanCell>& cells = *it->second;
        if (row.cells_size() != static_cast<int>(cells.size())) return;
        for (int i = 0; i < row.cells_size(); ++i) {
          analysis::ScanCell& cell = cells[static_cast<size_t>(i)];
          const double largest = row.cells(i);
          cell.meant = cell.non_finite > 0 && std::isinf(cell.largest) &&
                       row.counts(i) == cell.count && !std::isnan(largest) &&
                       largest != HUGE_VAL;
        }
      });
}

// Returns the numbers of one value at one step, by rank.
absl::StatusOr<std::map<int64_t, double>> ReadRanks(const Globals& globals,
                                                    RunScanRequest asked,
                                                    const std::string& match,
                                                    int64_t step) {
  asked.match = match;
  asked.from_step = asked.to_step = step;
  v1::QueryGridRequest request = RequestOf(asked);
  request.set_rows(v1::GRID_ROWS_RANK);
  std::map<int64_t, double> numbers;
  v1::GridHead head;
  RP_RETURN_IF_ERROR(
      ReadGrid(Client(globals), request, &head, [&](const v1::GridRow& row) {
        absl::string_view name = row.name();
        int64_t rank = 0;
        if (absl::ConsumePrefix(&name, "rank") &&
            absl::SimpleAtoi(name, &rank) && row.cells_size() == 1 &&
            row.counts(0) > 0)
          numbers[rank] = row.cells(0);
      }));
  return numbers;
}

bool IsParameter(absl::string_view name) {
  return absl::StartsWith(name, "Parameter.") && absl::EndsWith(name, ".param");
}

// Returns groups of ranks with equal parameters at the first step if some
// parameters are sharded, that is, not equal on all ranks. Empty if each rank
// has its own.
absl::StatusOr<std::vector<std::vector<int64_t>>> FindGroups(
    const Globals& globals, const RunScanRequest& asked,
    const analysis::ScanInput& input) {
  std::vector<std::vector<int64_t>> groups;
  std::vector<const analysis::ScanSeries*> shards;
  for (const analysis::ScanSeries& series : input.values) {
    if (!IsParameter(series.name) || series.cells.empty()) continue;
    const analysis::ScanCell& first = series.cells.front();
    if (first.count > kMostRanks) return groups;
    if (first.count > 1 && first.non_finite == 0 &&
        first.largest != first.smallest)
      shards.push_back(&series);
  }
  if (shards.empty()) return groups;
  // A few parameters are enough to distinguish the groups.
  constexpr size_t kLooked = 4;
  std::map<int64_t, std::vector<double>> of_rank;
  for (size_t i = 0; i < shards.size() && i < kLooked; ++i) {
    RP_ASSIGN_OR_RETURN(
        const auto numbers,
        ReadRanks(globals, asked, shards[i]->name, input.steps.front()));
    for (const auto& [rank, number] : numbers) of_rank[rank].push_back(number);
  }
  std::map<std::vector<double>, std::vector<int64_t>> by_value;
  for (const auto& [rank, numbers] : of_rank) by_value[numbers].push_back(rank);
  for (auto& [numbers, ranks] : by_value) {
    if (ranks.size() > 1) groups.push_back(std::move(ranks));
  }
  return groups;
}

// Whether ranks hold shards of everything: values that are equal on all of them
// in the first step are then constant tensors, such as initial weights of norms
// and biases.
absl::StatusOr<bool> IsAllSharded(const Globals& globals,
                                  const RunScanRequest& asked,
                                  const analysis::ScanInput& input) {
  absl::flat_hash_set<std::string> alike;
  bool any_differs = false;
  for (const analysis::ScanSeries& series : input.values) {
    if (!IsParameter(series.name) || series.cells.empty()) continue;
    const analysis::ScanCell& first = series.cells.front();
    if (first.count < 2 || first.non_finite > 0) continue;
    if (first.largest == first.smallest) {
      alike.insert(series.name);
    } else {
      any_differs = true;
    }
  }
  if (!any_differs || alike.empty()) return false;
  RunScanRequest of_step = asked;
  of_step.match = "*.debug.param";
  of_step.from_step = of_step.to_step = input.steps.front();
  absl::flat_hash_map<std::string, double> largest;
  bool all_are_one_number = true;
  for (const char* const statistic : {"Max", "Min"}) {
    v1::QueryGridRequest request = RequestOf(of_step);
    request.set_statistic(statistic);
    if (!largest.empty()) request.set_reducer(v1::GRID_REDUCER_MIN);
    v1::GridHead head;
    const bool is_first = largest.empty();
    RP_RETURN_IF_ERROR(
        ReadGrid(Client(globals), request, &head, [&](const v1::GridRow& row) {
          if (!alike.contains(row.name()) || row.cells_size() != 1) return;
          if (is_first) {
            largest.emplace(row.name(), row.cells(0));
          } else if (largest[row.name()] != row.cells(0)) {
            all_are_one_number = false;
          }
        }));
  }
  return all_are_one_number;
}

// Whether ranks are stages of a pipeline that one seed has started: only some of
// them compute a loss, and all have most parameters by the same names, which
// begin with the same numbers.
absl::StatusOr<bool> AreStages(const Globals& globals,
                               const RunScanRequest& asked,
                               const analysis::ScanInput& input) {
  size_t ranks = 0, held = 0, common = 0, alike = 0, unlike = 0;
  bool passes = false;
  for (const analysis::ScanSeries& series : input.values) {
    passes |= absl::StartsWith(series.name, "Distributed.") &&
              (absl::StrContains(series.name, "send") ||
               absl::StrContains(series.name, "recv"));
    if (!IsParameter(series.name) || series.cells.empty()) continue;
    const analysis::ScanCell& first = series.cells.front();
    if (first.count > 1 && first.largest != first.smallest)
      ++unlike;
    else if (first.count > 1)
      ++alike;
    held += first.count;
    common = first.count > ranks ? 1 : common + (first.count == ranks ? 1 : 0);
    ranks = std::max<size_t>(ranks, first.count);
  }
  // The first and the last layer of a model may have one name.
  if (2 * common * ranks < held || (unlike > 0 && (!passes || unlike >= alike)))
    return false;
  // A step of several micro batches has several losses.
  for (const char* const loss :
       {"Training.0.debug.loss", "Training.0.debug.loss.*"}) {
    RP_ASSIGN_OR_RETURN(const auto losses,
                        ReadRanks(globals, asked, loss, input.steps.front()));
    if (!losses.empty()) return losses.size() < ranks;
  }
  return false;
}

// Returns the only rank whose number differs from the others', or -1.
int64_t Stranger(const std::map<int64_t, double>& numbers) {
  std::map<double, std::vector<int64_t>> by_value;
  for (const auto& [rank, number] : numbers) by_value[number].push_back(rank);
  if (numbers.size() == 1) return numbers.begin()->first;
  if (by_value.size() != 2 || numbers.size() < 3) return -1;
  for (const auto& [number, ranks] : by_value) {
    if (ranks.size() == 1) return ranks[0];
  }
  return -1;
}

}  // namespace

absl::StatusOr<RunScan> ScanRun(const Globals& globals,
                                const RunScanRequest& request) {
  RunScan scan;
  RunScanRequest asked = request;
  RP_ASSIGN_OR_RETURN(scan.input,
                      ReadCells(Client(globals), RequestOf(asked), &scan.head));
  // Otherwise a mistyped pattern would print "0 findings", as a healthy run
  // does.
  if (scan.input.values.empty()) {
    return absl::NotFoundError(
        absl::StrCat("nothing to scan: no norm of ",
                     asked.match.empty() ? "any tensor" : asked.match, " in ",
                     Counted(scan.head.steps(), "recorded step")));
  }
  scan.trainings = analysis::TrainingsOf(scan.input);
  if (scan.trainings.size() > 1 && !asked.from_step.has_value() &&
      !asked.to_step.has_value()) {
    const analysis::Training longest =
        analysis::LongestOf(scan.input, scan.trainings);
    asked.from_step = longest.first_step;
    asked.to_step = longest.last_step;
    RP_ASSIGN_OR_RETURN(
        scan.input, ReadCells(Client(globals), RequestOf(asked), &scan.head));
  }
  RP_RETURN_IF_ERROR(ReadMasks(globals, asked, scan.head, &scan.input));
  analysis::ScanOptions options;
  options.window = asked.window;
  options.least = std::min(options.least, asked.window);
  options.factor = asked.factor;
  scan.findings = analysis::Scan(scan.input, options);
  // Requested only if there are moves, because it costs as much as everything
  // before.
  if (HasMoves(scan.findings)) {
    RP_RETURN_IF_ERROR(ReadSigns(globals, asked, scan.head, &scan.input));
    scan.findings = analysis::Scan(scan.input, options);
  }
  RP_ASSIGN_OR_RETURN(scan.groups, FindGroups(globals, asked, scan.input));
  for (const std::vector<int64_t>& group : scan.groups) {
    RunScanRequest of_group = asked;
    of_group.ranks = group;
    of_group.match = "*.debug.param";
    v1::GridHead head;
    RP_ASSIGN_OR_RETURN(const analysis::ScanInput input,
                        ReadCells(Client(globals), RequestOf(of_group), &head));
    for (analysis::ScanFinding& finding : analysis::ScanReplicas(input)) {
      const auto known = absl::c_find_if(
          scan.input.values,
          [&](const auto& series) { return series.name == finding.name; });
      const bool is_known =
          absl::c_any_of(scan.findings, [&](const auto& other) {
            return other.kind == finding.kind && other.name == finding.name;
          });
      if (known == scan.input.values.end() || is_known) continue;
      finding.value = static_cast<size_t>(known - scan.input.values.begin());
      finding.of_group = group;
      scan.findings.push_back(std::move(finding));
    }
  }
  const auto is_of_replicas = [](const analysis::ScanFinding& finding) {
    return finding.of_group.empty() &&
           (finding.kind == analysis::ScanKind::kRanksPart ||
            finding.kind == analysis::ScanKind::kNotAlike);
  };
  if (absl::c_any_of(scan.findings, is_of_replicas)) {
    RP_ASSIGN_OR_RETURN(const bool all_sharded,
                        IsAllSharded(globals, asked, scan.input));
    RP_ASSIGN_OR_RETURN(const bool are_stages,
                        AreStages(globals, asked, scan.input));
    if (all_sharded || are_stages) std::erase_if(scan.findings, is_of_replicas);
  }
  for (analysis::ScanFinding& finding : scan.findings) {
    if (finding.kind != analysis::ScanKind::kRanksPart &&
        finding.kind != analysis::ScanKind::kNotAlike &&
        finding.kind != analysis::ScanKind::kChanged)
      continue;
    RunScanRequest of_finding = asked;
    if (!finding.of_group.empty()) of_finding.ranks = finding.of_group;
    RP_ASSIGN_OR_RETURN(
        const auto numbers,
        ReadRanks(globals, of_finding, finding.name, finding.step));
    if (numbers.size() <= kMostRanks) finding.rank = Stranger(numbers);
  }
  analysis::SortFindings(&scan.findings);
  return scan;
}

absl::StatusOr<std::vector<int64_t>> ReadRankNumbers(
    const Globals& globals, const RunScanRequest& asked, const RunScan& scan) {
  std::vector<int64_t> ranks;
  if (scan.input.steps.empty()) return ranks;
  RunScanRequest of_step = asked;
  of_step.from_step = of_step.to_step = scan.input.steps.front();
  v1::QueryGridRequest request = RequestOf(of_step);
  request.set_rows(v1::GRID_ROWS_RANK);
  v1::GridHead head;
  RP_RETURN_IF_ERROR(
      ReadGrid(Client(globals), request, &head, [&](const v1::GridRow& row) {
        absl::string_view name = row.name();
        int64_t rank = 0;
        if (absl::ConsumePrefix(&name, "rank") && absl::SimpleAtoi(name, &rank))
          ranks.push_back(rank);
      }));
  absl::c_sort(ranks);
  return ranks;
}

absl::Status ReadStatistic(const Globals& globals, const RunScanRequest& asked,
                           const std::string& statistic, TakeSeries take) {
  v1::QueryGridRequest request = RequestOf(asked);
  request.set_statistic(statistic);
  v1::GridHead head;
  return ReadGrid(Client(globals), request, &head, [&](const v1::GridRow& row) {
    const std::vector<int64_t> steps(head.first_steps().begin(),
                                     head.first_steps().end());
    const std::vector<double> numbers(row.cells().begin(), row.cells().end());
    std::vector<bool> is_there;
    is_there.reserve(static_cast<size_t>(row.counts_size()));
    for (const auto count : row.counts()) is_there.push_back(count > 0);
    take(row.name(), steps, numbers, is_there);
  });
}

absl::StatusOr<analysis::ScanInput> ReadNorms(const Globals& globals,
                                              const RunScanRequest& asked) {
  v1::GridHead head;
  return ReadCells(Client(globals), RequestOf(asked), &head);
}

}  // namespace rankprobe
