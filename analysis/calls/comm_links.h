// SPDX-License-Identifier: Apache-2.0
// Links between communication calls of different ranks: from sends to receives,
// and among the members of a collective. Filled rank by rank, then queried. Not
// thread-safe.
#ifndef RANKPROBE_ANALYSIS_CALLS_COMM_LINKS_H_
#define RANKPROBE_ANALYSIS_CALLS_COMM_LINKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dump_format/json_value.h"

namespace rankprobe::analysis {

enum class CommKind { kSend, kReceive, kBoth };
absl::string_view CommKindName(CommKind kind);

struct CommPeer {
  int64_t rank = 0;
  std::string node;
};
struct CommLink {
  CommKind kind = CommKind::kBoth;
  std::vector<CommPeer> peers;  // by rank
};

// Facts about one call, for other searches that follow communication.
struct CommCall {
  std::string op;
  std::optional<int64_t> peer;
  std::vector<int64_t> group_ranks;
  std::string group_id;
};
CommCall ReadCommCall(absl::string_view entry, const JsonValue& record);
// Returns the sends and receives of a batch_isend_irecv.
std::vector<CommCall> ReadCommBatch(const JsonValue& record);

class CommLinks {
 public:
  CommLinks() = default;
  // A collective without a group belongs to `world`.
  explicit CommLinks(std::vector<int64_t> world) : world_(std::move(world)) {}

  // Adds the calls of a rank in the order of its dump. The caller skips nodes
  // that are not communication (IsCommunication).
  void Add(int64_t rank, absl::string_view node, const JsonValue& record);
  void Match();

  // Returns the links of a node; call it after Match. A batch of point-to-point
  // calls may have several.
  const std::vector<CommLink>* Find(int64_t rank, absl::string_view node) const;
  void ForEach(
      const std::function<void(int64_t rank, const std::string& node,
                               const std::vector<CommLink>& links)>& fn) const;

 private:
  struct Call {
    int64_t rank = 0;
    std::string node;
    std::string op;
    std::optional<int64_t> peer;  // src or dst
    std::vector<int64_t> group_ranks;
    std::string group_id;
    std::vector<std::string> keys;  // one, or one for each call of a batch
    std::vector<CommCall> batch;    // all with a peer
    std::vector<CommLink> links;
  };

  Call* Lookup(int64_t rank, const std::string& key);
  void MatchPointToPoint(Call* call);
  void MatchBatch(Call* call);
  void MatchCollective(Call* call);
  void MakeKeys(Call* call);

  std::vector<int64_t> world_;
  std::vector<Call> calls_;
  std::map<std::pair<int64_t, std::string>, size_t> by_key_;
  std::map<std::pair<int64_t, std::string>, size_t> by_node_;
  std::map<std::pair<int64_t, std::string>, int64_t> counts_;
};

// Whether the entry is the forward of a call of torch.distributed.
bool IsCommunication(absl::string_view entry);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_COMM_LINKS_H_
