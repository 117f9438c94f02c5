// SPDX-License-Identifier: Apache-2.0
#include "analysis/rules/parting_place.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kOutput = ".output.0";

bool HoldsPart(const RankInput& input, const std::vector<size_t>& ranks,
               absl::string_view module, size_t step) {
  const std::string weights = absl::StrCat(module, ".forward.0.parameters.");
  const auto& values = input.ranks[0].values;
  for (auto it = values.lower_bound(weights);
       it != values.end() && absl::StartsWith(it->first, weights); ++it) {
    if (!AreAllEqual(HeldAt(input, ranks, it->first, step))) return true;
  }
  return false;
}

// Whether the forward took something else on each rank, which its backward uses.
bool HasParted(const RankInput& input, const std::vector<size_t>& ranks,
               absl::string_view module, size_t step) {
  return !AreAllEqual(
      HeldAt(input, ranks, absl::StrCat(module, ".forward.0.input.0"), step));
}

}  // namespace

std::string PartingPlace(const RankInput& input, size_t step) {
  std::vector<size_t> ranks(input.ranks.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  for (const absl::string_view phase : {"forward", "backward"}) {
    const std::string call = absl::StrCat(".", phase, ".0");
    std::string innermost;
    std::ptrdiff_t deepest = -1;
    for (const auto& [name, cells] : input.ranks[0].values) {
      absl::string_view module = name;
      if (!absl::StartsWith(name, "Module.") ||
          !absl::ConsumeSuffix(&module, kOutput) ||
          !absl::ConsumeSuffix(&module, call))
        continue;
      const HeldCells given =
          HeldAt(input, ranks, absl::StrCat(module, call, ".input.0"), step);
      const HeldCells made = HeldAt(input, ranks, name, step);
      if (given.size() < ranks.size() || made.size() < ranks.size() ||
          given[0].second->norm == 0 || !AreAllEqual(given) ||
          AreAllEqual(made) || HoldsPart(input, ranks, module, step) ||
          (phase == "backward" && HasParted(input, ranks, module, step)))
        continue;
      const std::ptrdiff_t depth =
          std::count(module.begin(), module.end(), '.');
      if (depth <= deepest) continue;
      deepest = depth;
      innermost = name;
    }
    if (!innermost.empty()) return innermost;
  }
  return "";
}

std::string OwnWeightPlace(const RankInput& input, size_t step) {
  std::vector<size_t> ranks(input.ranks.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::string found;
  for (const auto& [name, cells] : input.ranks[0].values) {
    absl::string_view module = name;
    if (!absl::StartsWith(name, "Module.") ||
        !absl::ConsumeSuffix(&module, ".forward.0.output.0") ||
        !HoldsPart(input, ranks, module, step))
      continue;
    const HeldCells given =
        HeldAt(input, ranks, absl::StrCat(module, ".forward.0.input.0"), step);
    if (given.size() < ranks.size() || given[0].second->norm == 0 ||
        !AreAllEqual(given) || AreAllEqual(HeldAt(input, ranks, name, step)))
      continue;
    if (!found.empty()) return "";
    found = name;
  }
  return found;
}

}  // namespace rankprobe::analysis
