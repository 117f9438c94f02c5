// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/token_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/same_bytes.h"
#include "common/base/status_macros.h"
#include "common/config/config_reader.h"
#include "common/rpc/channel_security.h"

namespace rankprobe {
namespace {

constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxNameBytes = 255;
constexpr char kForm[] = "ROLE NAME TOKEN [run=NAME] [ranks=0-3,8]";

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Parses "0-3,8".
std::optional<Ranges> ParseRanks(absl::string_view text) {
  Ranges ranges;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(piece, absl::MaxSplits('-', 1));
    int64_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) || first < 0) return std::nullopt;
    last = first;
    if (absl::StrContains(piece, '-') &&
        (!absl::SimpleAtoi(ends.second, &last) || last < first))
      return std::nullopt;
    ranges.emplace_back(first, last);
  }
  return ranges;
}

std::string RanksText(const Ranges& ranges) {
  return absl::StrJoin(ranges, ",", [](std::string* out, const auto& range) {
    absl::StrAppend(out, range.first);
    if (range.second != range.first) absl::StrAppend(out, "-", range.second);
  });
}

// Parses a binding such as `run=NAME`. Returns false if it is not a binding, or
// the second one of its kind.
bool AddBinding(absl::string_view word, Principal* principal) {
  const auto take = [](absl::string_view value, std::string* to) {
    if (value.empty() || value.size() > kMaxNameBytes || !to->empty())
      return false;
    *to = std::string(value);
    return true;
  };
  if (absl::ConsumePrefix(&word, "run=")) return take(word, &principal->run);
  if (absl::ConsumePrefix(&word, "reads="))
    return take(word, &principal->reads);
  if (!absl::ConsumePrefix(&word, "ranks=") || !principal->ranks.empty())
    return false;
  const std::optional<Ranges> ranks = ParseRanks(word);
  if (ranks.has_value()) principal->ranks = *ranks;
  return ranks.has_value();
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kAgent:
      return "agent";
    case Role::kLeaf:
      return "leaf";
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
  }
  return "";
}

std::optional<Role> ParseRole(absl::string_view name) {
  for (const Role role :
       {Role::kAgent, Role::kLeaf, Role::kOperator, Role::kViewer}) {
    if (name == RoleName(role)) return role;
  }
  return std::nullopt;
}

absl::Status Principal::MayBe(absl::string_view of_run,
                              std::optional<int64_t> rank) const {
  if (!run.empty() && run != of_run) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token of ", name, " is for run ", run));
  }
  if (ranks.empty() || !rank.has_value()) return absl::OkStatus();
  for (const auto& [first, last] : ranks) {
    if (first <= *rank && *rank <= last) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the token of ", name, " is for ranks ", RanksText(ranks)));
}

absl::Status Principal::MayReadReference(absl::string_view of_run,
                                         std::optional<int64_t> rank) const {
  if (!reads.empty() && reads == of_run) return absl::OkStatus();
  return MayBe(of_run, rank);
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  ConfigFaults faults;
  std::set<std::string> tokens;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    std::vector<std::string> words =
        absl::StrSplit(absl::StripAsciiWhitespace(raw),
                       absl::ByAnyChar(" \t\r\v\f"), absl::SkipEmpty());
    // Only at the beginning of a word, because a token may contain the
    // character.
    words.erase(std::find_if(words.begin(), words.end(),
                             [](const std::string& word) {
                               return absl::StartsWith(word, "#");
                             }),
                words.end());
    if (words.empty()) continue;
    const std::string where = absl::StrCat("token file, line ", number);
    if (words.size() < 3) {
      faults.Add(where, absl::StrCat(words.size(), " words"), kForm);
      continue;
    }
    const std::optional<Role> role = ParseRole(words[0]);
    if (!role.has_value())
      faults.Add(where, words[0], "one of agent, leaf, operator, viewer");
    if (words[1].size() > kMaxNameBytes)
      faults.Add(where, "its name", "at most 255 bytes");
    if (words[2].size() < kMinTokenBytes || words[2].size() > kMaxTokenBytes) {
      faults.Add(where, absl::StrCat("a token of ", words[2].size(), " bytes"),
                 absl::StrCat(kMinTokenBytes, " to ", kMaxTokenBytes,
                              " bytes, such as `openssl rand -hex 24` makes"));
    } else if (!tokens.insert(words[2]).second) {
      faults.Add(where, "the token of another line", "a token of its own");
    }
    Principal principal = Principal::Of(role.value_or(Role::kViewer), words[1]);
    for (size_t i = 3; i < words.size(); ++i) {
      // The word is not shown, because it may be part of a token.
      if (principal.role != Role::kAgent || !AddBinding(words[i], &principal)) {
        faults.Add(where, absl::StrCat("its word ", i + 1),
                   "of an agent: run=NAME, ranks=0-3,8 or reads=NAME, each "
                   "once; of others nothing");
      }
    }
    table.entries_.push_back({std::move(principal), words[2]});
  }
  if (table.entries_.empty() && faults.empty())
    faults.Add("token file", "no token", absl::StrCat("lines of ", kForm));
  RP_RETURN_IF_ERROR(faults.ToStatus());
  return table;
}

absl::StatusOr<TokenTable> TokenTable::Load(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & S_IRWXO) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": everybody may read it; chmod o-rwx it and change the tokens"));
  }
  RP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  return Parse(text);
}

size_t TokenTable::CountAgents() const {
  std::set<absl::string_view> names;
  for (const Entry& entry : entries_) {
    if (entry.principal.role == Role::kAgent)
      names.insert(entry.principal.name);
  }
  return names.size();
}

std::optional<Principal> TokenTable::Find(absl::string_view token) const {
  std::optional<Principal> found;
  for (const Entry& entry : entries_) {
    if (SameBytes(entry.token, token)) found = entry.principal;
  }
  return found;
}

}  // namespace rankprobe
