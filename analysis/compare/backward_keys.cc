// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/backward_keys.h"

#include <cstdint>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rankprobe::analysis {
namespace {

// Position of an entry's call number.
struct Numbered {
  size_t begin = 0;
  size_t end = 0;  // == begin: none
};

bool IsDigits(absl::string_view text) {
  return !text.empty() && absl::c_all_of(text, absl::ascii_isdigit);
}

// Finds the number in "Prefix.op.N.backward" or "Module.path.Class.backward.N".
Numbered BackwardNumber(absl::string_view entry) {
  const size_t last = entry.rfind('.');
  if (last == absl::string_view::npos) return {};
  const size_t second = entry.rfind('.', last - 1);
  if (second == absl::string_view::npos || last == 0) return {};
  const absl::string_view tail = entry.substr(last + 1);
  const absl::string_view before = entry.substr(second + 1, last - second - 1);
  if (tail == "backward" && IsDigits(before)) return {second + 1, last};
  if (before == "backward" && IsDigits(tail)) return {last + 1, entry.size()};
  return {};
}

// Turns "Tensor.to.3.backward" into "Tensor.to.\n.backward".
std::string FamilyOf(absl::string_view name, const Numbered& at) {
  return absl::StrCat(name.substr(0, at.begin), "\n", name.substr(at.end));
}

using Families = absl::flat_hash_set<std::string>;

// Backward calls arrive in their own order, and a recomputed forward shifts
// their numbers. Both sides therefore number them by arrival, except for the
// families in `named`.
std::vector<std::string> KeysByArrival(const std::vector<std::string>& names,
                                       const Families& named) {
  absl::flat_hash_map<std::string, int64_t> next;
  std::vector<std::string> keys;
  keys.reserve(names.size());
  for (const std::string& name : names) {
    const Numbered at = BackwardNumber(name);
    if (at.begin == at.end) {
      keys.push_back(name);
      continue;
    }
    const std::string family = FamilyOf(name, at);
    if (named.contains(family)) {
      keys.push_back(name);
      continue;
    }
    keys.push_back(absl::StrCat(name.substr(0, at.begin), next[family]++,
                                name.substr(at.end)));
  }
  return keys;
}

// Returns the families that are matched by name. Joined ranks have the names of
// the other run (analysis/layout). If that run has one more backward call, the
// first of a pipeline stage, then matching by arrival pairs all later calls
// wrongly. Equally many calls under other names come from a recomputed forward.
Families FamiliesByName(const std::vector<std::string>& target,
                        const std::vector<std::string>& reference) {
  absl::flat_hash_map<std::string, std::set<absl::string_view>> of_target;
  absl::flat_hash_map<std::string, std::set<absl::string_view>> of_reference;
  const auto collect = [](const std::vector<std::string>& names, auto* out) {
    for (const std::string& name : names) {
      const Numbered at = BackwardNumber(name);
      if (at.begin != at.end) (*out)[FamilyOf(name, at)].insert(name);
    }
  };
  collect(target, &of_target);
  collect(reference, &of_reference);
  Families out;
  for (const auto& [family, names] : of_target) {
    const auto it = of_reference.find(family);
    if (it == of_reference.end()) continue;
    if (names == it->second || names.size() != it->second.size()) {
      out.insert(family);
    }
  }
  return out;
}

}  // namespace

BackwardKeys KeysOfBackward(const std::vector<std::string>& target,
                            const std::vector<std::string>& reference,
                            bool put_together) {
  const Families named =
      put_together ? FamiliesByName(target, reference) : Families();
  return {KeysByArrival(target, named), KeysByArrival(reference, named)};
}

}  // namespace rankprobe::analysis
