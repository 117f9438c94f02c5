// Bearer tokens and what their holders may do. Immutable after parsing.
//
// The file: one holder a line, `ROLE NAME TOKEN`, '#' begins a comment; roles
// are agent, operator and viewer. An operator may do what a viewer may.
#ifndef RANKPROBE_COLLECTOR_AUTH_TOKEN_TABLE_H_
#define RANKPROBE_COLLECTOR_AUTH_TOKEN_TABLE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

enum class Role { kAgent, kOperator, kViewer };

absl::string_view RoleName(Role role);
std::optional<Role> ParseRole(absl::string_view name);

// Whoever makes a call.
struct Principal {
  Role role = Role::kViewer;
  std::string name;
};

class TokenTable {
 public:
  // INVALID_ARGUMENT with every fault: line, what is wrong; never a token.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);
  // FAILED_PRECONDITION when others than owner and group may read the file.
  static absl::StatusOr<TokenTable> Load(const std::string& path);

  // Takes the same time for every token of one length.
  std::optional<Principal> Find(absl::string_view token) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Principal principal;
    std::string token;
  };
  std::vector<Entry> entries_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_TOKEN_TABLE_H_
