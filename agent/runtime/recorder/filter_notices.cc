// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/filter_notices.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Limit of items of a filter in a line for a person.
constexpr size_t kMaxNamed = 16;

// Formatted as Python prints a list.
std::string ListText(std::vector<std::string> items) {
  const bool more = items.size() > kMaxNamed;
  if (more) items.resize(kMaxNamed);
  return absl::StrCat("[", absl::StrJoin(items, ", "), more ? ", ..]" : "]");
}

std::string RanksText(const IntSet& ranks) {
  std::vector<std::string> items;
  for (const IntInterval& i : ranks.intervals()) {
    items.push_back(i.first == i.last
                        ? absl::StrCat(i.first)
                        : absl::StrCat("'", i.first, "-", i.last, "'"));
    if (items.size() > kMaxNamed) break;
  }
  return ListText(std::move(items));
}

std::string NamesText(const std::vector<std::string>& names) {
  std::vector<std::string> items;
  items.reserve(names.size());
  for (const std::string& name : names)
    items.push_back(absl::StrCat("'", VisibleText(name), "'"));
  return ListText(std::move(items));
}

bool NamesBackward(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::StrContains(name, "backward");
  });
}

}  // namespace

bool FilterNotices::IsFirst(const std::shared_ptr<const Plan>& plan,
                            const char* notice) {
  if (plan != plan_) {
    plan_ = plan;
    told_.clear();
  }
  return told_.insert(notice).second;
}

std::optional<std::string> FilterNotices::Started(
    const std::shared_ptr<const Plan>& plan, std::optional<int64_t> rank,
    bool single_process) {
  if (!single_process || plan->WantsRank(rank) || !IsFirst(plan, "rank"))
    return std::nullopt;
  return absl::StrCat(
      "config.json asks for rank ", RanksText(plan->ranks),
      " and this is a single process ",
      rank.has_value() ? absl::StrCat("of rank ", *rank) : "without a rank",
      ": nothing is recorded; set \"rank\": []");
}

std::optional<std::string> FilterNotices::Stopped(
    const std::shared_ptr<const Plan>& plan, uint64_t seen, uint64_t matched,
    int64_t step) {
  if (seen == 0 || matched > 0) return std::nullopt;
  for (const auto& [field, names] :
       {std::pair("list", &plan->list), std::pair("scope", &plan->scope)}) {
    // Backward entries are not counted.
    if (names->empty() || NamesBackward(*names)) continue;
    if (!IsFirst(plan, field)) return std::nullopt;
    return absl::StrCat(field, " ", NamesText(*names), " matched none of the ",
                        seen, " forwards of step ", step,
                        ": nothing was recorded");
  }
  return std::nullopt;
}

}  // namespace rankprobe
