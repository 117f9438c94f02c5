#include "collector/auth/token_table.h"

#include <sys/stat.h>

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/channel_security.h"
#include "common/config_reader.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxNameBytes = 255;

bool SameBytes(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kAgent:
      return "agent";
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
  }
  return "";
}

std::optional<Role> ParseRole(absl::string_view name) {
  for (const Role role : {Role::kAgent, Role::kOperator, Role::kViewer}) {
    if (name == RoleName(role)) return role;
  }
  return std::nullopt;
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  ConfigFaults faults;
  std::set<std::string> tokens;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line =
        absl::StripAsciiWhitespace(raw.substr(0, raw.find('#')));
    if (line.empty()) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const std::string where = absl::StrCat("token file, line ", number);
    if (words.size() != 3) {
      faults.Add(where, absl::StrCat(words.size(), " words"),
                 "ROLE NAME TOKEN");
      continue;
    }
    const std::optional<Role> role = ParseRole(words[0]);
    if (!role.has_value())
      faults.Add(where, words[0], "one of agent, operator, viewer");
    if (words[1].size() > kMaxNameBytes)
      faults.Add(where, "its name", "at most 255 bytes");
    if (words[2].size() < kMinTokenBytes || words[2].size() > kMaxTokenBytes) {
      faults.Add(where, absl::StrCat("a token of ", words[2].size(), " bytes"),
                 absl::StrCat(kMinTokenBytes, " to ", kMaxTokenBytes,
                              " bytes, such as `openssl rand -hex 24` makes"));
    } else if (!tokens.insert(words[2]).second) {
      faults.Add(where, "the token of another line", "a token of its own");
    }
    if (role.has_value())
      table.entries_.push_back({{*role, words[1]}, words[2]});
  }
  if (table.entries_.empty() && faults.empty())
    faults.Add("token file", "no token", "lines of ROLE NAME TOKEN");
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

std::optional<Principal> TokenTable::Find(absl::string_view token) const {
  std::optional<Principal> found;
  for (const Entry& entry : entries_) {
    if (SameBytes(entry.token, token)) found = entry.principal;
  }
  return found;
}

}  // namespace rankprobe
