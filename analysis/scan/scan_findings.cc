// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/scan_findings.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace rankprobe::analysis {
namespace {

bool HasNoEffectAlone(absl::string_view name) {
  return name == "Training.0.debug.grad_norm" ||
         (absl::StartsWith(name, "Module.") &&
          absl::StrContains(name, ".backward."));
}

// most. Returns 0 for the other kinds, for which the first value in the order
// of execution is reported.
double DeviationOf(const ScanFinding& finding) {
  if (finding.kind != ScanKind::kRanksPart &&
      finding.kind != ScanKind::kNotAlike && finding.kind != ScanKind::kChanged)
    return 0;
  const double size =
      std::max(std::fabs(finding.now), std::fabs(finding.before));
  if (size == 0) return 0;
  const double deviation = std::fabs(finding.now - finding.before) / size;
  return std::isfinite(deviation) ? deviation : HUGE_VAL;
}

}  // namespace

void ScanFindings::Add(ScanKind kind, size_t column, size_t value, int64_t rank,
                       double now, double before) {
  found_.push_back({column,
                    {kind,
                     input_.steps[column],
                     input_.values[value].name,
                     value,
                     rank,
                     now,
                     before,
                     0,
                     {}}});
}

void ScanFindings::DropMovesWithoutEffect() {
  std::set<size_t> with_effect;
  for (const Found& found : found_) {
    if (!HasNoEffectAlone(found.finding.name)) with_effect.insert(found.column);
  }
  found_.erase(std::remove_if(found_.begin(), found_.end(),
                              [&](const Found& found) {
                                return found.finding.kind == ScanKind::kMove &&
                                       HasNoEffectAlone(found.finding.name) &&
                                       !with_effect.contains(found.column);
                              }),
               found_.end());
}

std::vector<ScanFinding> ScanFindings::Take(size_t least) {
  std::stable_sort(found_.begin(), found_.end(),
                   [](const Found& a, const Found& b) {
                     const double of_a = -DeviationOf(a.finding);
                     const double of_b = -DeviationOf(b.finding);
                     return std::tie(a.column, of_a, a.finding.value) <
                            std::tie(b.column, of_b, b.finding.value);
                   });
  std::vector<ScanFinding> out;
  // Index in `out` and column of the last finding of each kind.
  std::map<ScanKind, std::pair<size_t, size_t>> last;
  for (auto& [column, finding] : found_) {
    const auto it = last.find(finding.kind);
    const bool lasts =
        finding.kind != ScanKind::kMove && finding.kind != ScanKind::kRankMoves;
    if (it != last.end() && (lasts || column < it->second.second + least)) {
      ++out[it->second.first].others;
      continue;
    }
    last[finding.kind] = {out.size(), column};
    out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace rankprobe::analysis
