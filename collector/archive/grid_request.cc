// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/grid_request.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/records/entry_names.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr uint32_t kUsualCells = 100000, kMostCells = 1000000;

}  // namespace

absl::StatusOr<Stat> ParseStatistic(const std::string& name) {
  if (name.empty()) return kNorm;
  std::vector<absl::string_view> known;
  for (size_t i = 0; i < kStatCount; ++i) {
    if (absl::EqualsIgnoreCase(kStatInfo[i].key, name))
      return static_cast<Stat>(i);
    known.push_back(kStatInfo[i].key);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no statistic \"", VisibleText(name), "\"; there are ",
                   absl::StrJoin(known, ", ")));
}

absl::Status CheckGridRequest(const v1::QueryGridRequest& request) {
  if (!v1::GridRows_IsValid(request.rows()) ||
      !v1::GridReducer_IsValid(request.reducer()))
    return absl::InvalidArgumentError("unknown kind of rows or reducer");
  if (request.has_first_step() && request.has_last_step() &&
      request.first_step() > request.last_step())
    return absl::InvalidArgumentError("the first step is behind the last one");
  return absl::OkStatus();
}

size_t CellsOf(const v1::QueryGridRequest& request) {
  return request.max_cells() == 0 ? kUsualCells
                                  : std::min(request.max_cells(), kMostCells);
}

ValueSelection SelectionOf(const v1::QueryGridRequest& request) {
  ValueSelection selection;
  selection.run = request.run();
  if (request.has_first_step() || request.has_last_step()) {
    selection.steps = IntSet::OfIntervals(
        {{request.has_first_step() ? request.first_step() : 0,
          request.has_last_step() ? request.last_step()
                                  : std::numeric_limits<int64_t>::max()}});
  }
  selection.ranks = IntSet({request.ranks().begin(), request.ranks().end()});
  selection.incarnations = {request.incarnations().begin(),
                            request.incarnations().end()};
  selection.match = request.match();
  selection.values = request.values();
  return selection;
}

absl::string_view RowNameOf(v1::GridRows rows, absl::string_view entry,
                            absl::string_view name) {
  if (rows == v1::GRID_ROWS_CALL) return entry;
  if (rows != v1::GRID_ROWS_MODULE) return name;
  const absl::string_view module = ModuleOfEntry(entry);
  if (!module.empty()) return module;
  // "Functional.relu" for "Functional.relu.0.forward".
  const absl::string_view op = OpOfEntry(entry);
  if (op.empty()) return entry;
  return entry.substr(
      0, static_cast<size_t>(op.data() - entry.data()) + op.size());
}

}  // namespace rankprobe
