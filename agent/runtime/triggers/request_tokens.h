// SPDX-License-Identifier: Apache-2.0
// The last tokens of a server's requests, with their log probability and
// entropy, in memory: what rules about tokens check, and what is recorded of a
// request when one fires. Not thread-safe: guarded by the TriggerWatcher's
// lock. Failure: none; beyond a limit the oldest are dropped.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_REQUEST_TOKENS_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_REQUEST_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/types/span.h"
#include "common/detect/token_checks.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class RequestTokens {
 public:
  // With 0 tokens, nothing is kept.
  void SetLimits(size_t requests, size_t tokens);

  // Returns the kept tokens of the request, the new one last; valid until the
  // next call.
  absl::Span<const RequestToken> Add(const std::string& request,
                                     const RequestToken& token);
  // Names the request among those to record, and why. Of many, later ones are
  // left out.
  void Want(const std::string& request, std::string why);
  // Wants all requests that `name` names: by id, or as their client calls them.
  v1::RequestFlagged Flag(const std::string& name);
  struct Wanted {
    // The step of the request's last token.
    int64_t step = 0;
    // Facts of the run card (docs/formats.md, "Dump layout").
    std::vector<v1::RunFact> facts;
  };
  // Returns the tokens of each wanted request, and wants none any more.
  std::vector<Wanted> TakeWanted();

 private:
  struct Kept {
    std::vector<RequestToken> tokens;
    // Increases with each token of any request.
    uint64_t newest = 0;
  };

  absl::Span<const RequestToken> Of(const Kept& kept) const;
  void DropOldest();

  size_t max_requests_ = 0;
  size_t max_tokens_ = 0;
  uint64_t count_ = 0;
  absl::btree_map<std::string, Kept> requests_;
  // By request, why.
  absl::btree_map<std::string, std::string> wanted_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_REQUEST_TOKENS_H_
