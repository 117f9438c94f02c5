// SPDX-License-Identifier: Apache-2.0
#include "analysis/rules/parameter_tree.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace rankprobe::analysis {
namespace {

// The rest of the names behind their first component.
struct Below {
  std::vector<std::string> some, others;
};

// Returns whether it is a usual name of a layer behind a backbone.
bool IsHead(absl::string_view part) {
  constexpr absl::string_view kWords[] = {"head",   "classif", "score",
                                          "output", "predict", "norm"};
  return absl::StartsWith(part, "fc") || part == "ln_f" ||
         std::any_of(std::begin(kWords), std::end(kWords),
                     [&](absl::string_view word) {
                       return absl::StrContains(part, word);
                     });
}

void Add(const std::string& name, bool is_other,
         std::map<std::string, Below>* parts) {
  const size_t dot = std::min(name.find('.'), name.size());
  Below& below = (*parts)[name.substr(0, dot)];
  (is_other ? below.others : below.some)
      .push_back(name.substr(std::min(dot + 1, name.size())));
}

}  // namespace

bool IsEndOfModel(const std::vector<std::string>& some,
                  const std::vector<std::string>& others) {
  std::map<std::string, Below> parts;
  for (const std::string& name : some) Add(name, false, &parts);
  for (const std::string& name : others) Add(name, true, &parts);
  int64_t last_other = -1, number = 0;
  for (const auto& [part, below] : parts) {
    if (!below.others.empty() && absl::SimpleAtoi(part, &number))
      last_other = std::max(last_other, number);
  }
  return std::all_of(parts.begin(), parts.end(), [&](const auto& one) {
    const auto& [part, below] = one;
    if (below.some.empty()) return true;
    if (!below.others.empty()) return IsEndOfModel(below.some, below.others);
    int64_t own = 0;
    return IsHead(part) || (absl::SimpleAtoi(part, &own) && own > last_other &&
                            last_other >= 0);
  });
}

}  // namespace rankprobe::analysis
