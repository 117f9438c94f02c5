// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/scan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "analysis/scan/kept_values.h"
#include "analysis/scan/moved_values.h"
#include "analysis/scan/parted_ranks.h"
#include "analysis/scan/replicated_values.h"
#include "analysis/scan/scan_findings.h"

namespace rankprobe::analysis {
namespace {

// Of the tensors of batch_isend_irecv some are received into: before the call
// they hold whatever was in that memory. What is sent is the output of a module.
bool MayBeReceiveBuffer(absl::string_view name) {
  return absl::StartsWith(name, "Distributed.batch_isend_irecv.") &&
         absl::StrContains(name, ".input.");
}

bool HasAllCells(const ScanInput& input, const ScanSeries& series) {
  return series.cells.size() == input.steps.size();
}

void FindNonFinite(const ScanInput& input, size_t value, ScanFindings& found) {
  const std::vector<ScanCell>& cells = input.values[value].cells;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (!IsPresent(cells[i]) || IsFinite(cells[i]) || cells[i].meant) continue;
    const bool one = cells[i].non_finite < cells[i].count;
    found.Add(ScanKind::kNonFinite, i, value,
              one || cells[i].count == 1 ? cells[i].largest_rank : -1,
              cells[i].largest, 0);
    return;
  }
}

}  // namespace

absl::string_view ScanKindText(ScanKind kind) {
  switch (kind) {
    case ScanKind::kNonFinite:
      return "non-finite";
    case ScanKind::kRanksPart:
      return "ranks part";
    case ScanKind::kNotAlike:
      return "not alike";
    case ScanKind::kMove:
      return "move";
    case ScanKind::kRankMoves:
      return "rank moves";
    case ScanKind::kVanished:
      return "vanished";
    case ScanKind::kChanged:
      return "changed";
    case ScanKind::kNoMore:
      return "disappeared";
  }
  return "";
}

// `sign`: 1 or -1.
static bool HasSign(const std::vector<ScanCell>& means, double sign) {
  return std::any_of(means.begin(), means.end(), [&](const ScanCell& mean) {
    return IsFinite(mean) && mean.largest * sign > 0;
  });
}

bool MayPassZero(const ScanSeries& norms, const std::vector<ScanCell>& means) {
  if (norms.cells.size() != means.size()) return false;
  // The loss of a policy or of a critic can have both signs.
  if (absl::StartsWith(norms.name, "Training."))
    return HasSign(means, 1) && HasSign(means, -1);
  bool any = false;
  for (size_t i = 0; i < means.size(); ++i) {
    const ScanCell& norm = norms.cells[i];
    if (!IsFinite(norm) || norm.largest == 0) continue;
    // One step in which the value has several elements is enough to return
    // false.
    const double mean =
        std::max(std::fabs(means[i].largest), std::fabs(means[i].smallest));
    if (means[i].count != norm.count || !IsFinite(means[i]) ||
        !rankprobe::MayPassZero(norms.name, norm.largest, mean))
      return false;
    any = true;
  }
  return any;
}

absl::string_view ForwardOf(absl::string_view name) {
  constexpr absl::string_view kForward = ".forward";
  const size_t at = name.find(absl::StrCat(kForward, "."));
  return at == absl::string_view::npos ? ""
                                       : name.substr(0, at + kForward.size());
}

bool MayBeMask(absl::string_view name,
               const absl::flat_hash_set<absl::string_view>& given) {
  if (absl::StrContains(name, ".parameters_grad.") ||
      absl::StrContains(name, ".backward.") ||
      absl::StrContains(name, ".parameters."))
    return false;
  if (absl::StartsWith(name, "Module.")) return true;
  const absl::string_view call = ForwardOf(name);
  if (call.empty()) return false;
  // The source of a call's input is another call or the program's code.
  if (absl::StartsWith(name.substr(call.size()), ".input.")) return true;
  // The call passes on an infinity, or an argument of it sets one.
  if (given.contains(call)) return true;
  constexpr absl::string_view kFill[] = {
      "masked_fill", "masked_fill_", "full",          "full_like",
      "new_full",    "fill_",        "scalar_tensor", "where",
      "__setitem__", "index_fill",   "index_fill_",   "pad"};
  const std::vector<absl::string_view> words =
      absl::StrSplit(call, absl::MaxSplits('.', 2));
  return std::find(std::begin(kFill), std::end(kFill), words[1]) !=
         std::end(kFill);
}

bool IsOfExchange(absl::string_view name) {
  return absl::StrContains(name, "all_to_all");
}

bool IsOfExpert(absl::string_view name) {
  return absl::StrContains(name, "expert");
}

void SortFindings(std::vector<ScanFinding>* findings) {
  std::stable_sort(findings->begin(), findings->end(),
                   [](const ScanFinding& a, const ScanFinding& b) {
                     return std::tie(a.step, a.value) <
                            std::tie(b.step, b.value);
                   });
}

std::vector<ScanFinding> ScanReplicas(const ScanInput& input) {
  const ReplicatedValues replicated(input);
  ScanFindings found(input);
  KeptValues kept(input, replicated, found);
  for (size_t value = 0; value < input.values.size(); ++value) {
    if (!HasAllCells(input, input.values[value])) continue;
    FindParting(input, replicated, value, found);
    kept.FindChanged(value);
  }
  return found.Take(ScanOptions().least);
}

std::vector<ScanFinding> Scan(const ScanInput& input,
                              const ScanOptions& options) {
  const ReplicatedValues replicated(input);
  ScanFindings found(input);
  KeptValues kept(input, replicated, found);
  MovedValues moved(input, options, replicated, found);
  for (size_t value = 0; value < input.values.size(); ++value) {
    if (!HasAllCells(input, input.values[value]) ||
        MayBeReceiveBuffer(input.values[value].name))
      continue;
    FindNonFinite(input, value, found);
    moved.FindMoves(value);
    FindParting(input, replicated, value, found);
    kept.FindChanged(value);
    moved.FindVanished(value);
    kept.FindNoMore(value);
  }
  FindNotAlike(input, replicated, found);
  if (moved.HasGradients()) found.DropMovesWithoutEffect();
  return found.Take(options.least);
}

}  // namespace rankprobe::analysis
