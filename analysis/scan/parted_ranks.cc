// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/parted_ranks.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rankprobe::analysis {
namespace {

// Number of values of a kind that must agree over ranks before others can stand
// out.
constexpr size_t kLeastAlike = 3;
// Number of steps.
constexpr size_t kLeastAgreed = 3;
constexpr double kMostUnlike = 0.34;

// Returns the kind of a value: "Parameter..grad",
// "Module..parameters_grad..weight".
std::string LikeOf(absl::string_view name) {
  return absl::StrCat(
      name.substr(0, name.find('.')), "..",
      absl::StrContains(name, ".parameters_grad.") ? "parameters_grad.." : "",
      name.substr(name.rfind('.') + 1));
}

// Whether ranks train alone and average their weights periodically (local
// SGD): values that differ become equal again, twice or more often.
bool AreAveraged(const std::vector<ScanCell>& cells) {
  size_t times = 0;
  bool has_parted = false;
  for (const ScanCell& cell : cells) {
    if (!IsFinite(cell) || cell.count < 2) continue;
    if (RanksAgree(cell) && has_parted) ++times;
    has_parted = !RanksAgree(cell);
  }
  return times >= 2;
}

}  // namespace

void FindParting(const ScanInput& input, const ReplicatedValues& replicated,
                 size_t value, ScanFindings& found) {
  const std::vector<ScanCell>& cells = input.values[value].cells;
  if (!replicated.IsReplicated(input.values[value].name) || AreAveraged(cells))
    return;
  size_t agreed = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (!IsFinite(cells[i]) || cells[i].count < 2) continue;
    if (RanksAgree(cells[i])) {
      // Zeros agree even in values that are not replicated.
      if (cells[i].largest != 0) ++agreed;
      continue;
    }
    // One agreement may be chance, except for parameters, which start with
    // equal values.
    const bool is_parameter =
        absl::StartsWith(input.values[value].name, "Parameter.");
    if (agreed >= (is_parameter ? 1 : kLeastAgreed)) {
      found.Add(ScanKind::kRanksPart, i, value, -1, cells[i].largest,
                cells[i].smallest);
    }
    return;
  }
}

void FindNotAlike(const ScanInput& input, const ReplicatedValues& replicated,
                  ScanFindings& found) {
  struct Like {
    size_t alike = 0;
    // Column and value.
    std::vector<std::pair<size_t, size_t>> unlike;
  };
  std::map<std::string, Like> likes;
  for (size_t value = 0; value < input.values.size(); ++value) {
    const std::vector<ScanCell>& cells = input.values[value].cells;
    if (cells.size() != input.steps.size() ||
        !replicated.IsReplicated(input.values[value].name))
      continue;
    size_t columns = 0, agree = 0, first = cells.size();
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsFinite(cells[i]) || cells[i].count < 2) continue;
      ++columns;
      if (RanksAgree(cells[i])) {
        ++agree;
      } else {
        first = std::min(first, i);
      }
    }
    if (columns < 2) continue;
    Like& like = likes[LikeOf(input.values[value].name)];
    if (agree == columns) {
      ++like.alike;
    } else if (agree == 0) {
      like.unlike.emplace_back(first, value);
    }
  }
  for (const auto& [name, like] : likes) {
    const size_t all = like.alike + like.unlike.size();
    if (like.alike < kLeastAlike || static_cast<double>(like.unlike.size()) >
                                        kMostUnlike * static_cast<double>(all))
      continue;
    for (const auto& [column, value] : like.unlike) {
      const ScanCell& cell = input.values[value].cells[column];
      found.Add(ScanKind::kNotAlike, column, value, -1, cell.largest,
                cell.smallest);
    }
  }
}

}  // namespace rankprobe::analysis
