// SPDX-License-Identifier: Apache-2.0
// Bearer tokens and what their holders may do. Immutable after parsing.
//
// The file has one holder per line, `ROLE NAME TOKEN [BINDING..]`; a word that
// begins with '#' begins a comment. Roles are agent, leaf, operator and viewer.
// An operator may do what a viewer may; a leaf may only link itself to a root.
// Bindings, of an agent only:
//   run=NAME     it sends to this run and no other
//   ranks=0-3,8  it is one of these ranks, or none yet
//   reads=NAME   besides its own run it may read this one's reference
#ifndef RANKPROBE_COLLECTOR_AUTH_TOKEN_TABLE_H_
#define RANKPROBE_COLLECTOR_AUTH_TOKEN_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

enum class Role { kAgent, kLeaf, kOperator, kViewer };

absl::string_view RoleName(Role role);
std::optional<Role> ParseRole(absl::string_view name);

// The identity of a caller.
struct Principal {
  // The name of every caller of a collector without tokens.
  static constexpr absl::string_view kAnybody = "anybody";

  Role role = Role::kViewer;
  std::string name;
  // Empty: any run.
  std::string run;
  // First and last of each range; empty: any rank.
  std::vector<std::pair<int64_t, int64_t>> ranks;
  std::string reads;

  static Principal Of(Role role, std::string name) {
    Principal principal;
    principal.role = role;
    principal.name = std::move(name);
    return principal;
  }
  bool operator==(const Principal&) const = default;

  // Checks that the principal may be this process of the run; an unknown rank
  // passes. PERMISSION_DENIED.
  absl::Status MayBe(absl::string_view of_run,
                     std::optional<int64_t> rank) const;
  // Checks that it may read the records of that rank of the run.
  // PERMISSION_DENIED.
  absl::Status MayReadReference(absl::string_view of_run,
                                std::optional<int64_t> rank) const;
};

class TokenTable {
 public:
  // INVALID_ARGUMENT with every fault: line and reason; never a token.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);
  // FAILED_PRECONDITION if users other than owner and group may read the file.
  static absl::StatusOr<TokenTable> Load(const std::string& path);

  // Takes the same time for every token of one length.
  std::optional<Principal> Find(absl::string_view token) const;
  size_t size() const { return entries_.size(); }
  // Returns the number of agents' names.
  size_t CountAgents() const;

 private:
  struct Entry {
    Principal principal;
    std::string token;
  };
  std::vector<Entry> entries_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_TOKEN_TABLE_H_
