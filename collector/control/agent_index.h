// SPDX-License-Identifier: Apache-2.0
// Index of sessions by rank and process of a run, and by principal: what every
// Hello asks, of many thousand ranks.
//
// Ownership: a control plane's, kept beside its sessions. Not thread-safe: guarded
// by its lock. Never fails; what is not there is not removed.
#ifndef RANKPROBE_COLLECTOR_CONTROL_AGENT_INDEX_H_
#define RANKPROBE_COLLECTOR_CONTROL_AGENT_INDEX_H_

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class AgentIndex {
 public:
  void Add(const std::string& session, const v1::Identity& identity);
  // With the identity that it was added with.
  void Remove(const std::string& session, const v1::Identity& identity);
  // Sessions of the rank, if it is known, or of the process, in their order.
  std::set<std::string> Find(const v1::Identity& identity) const;

  // A session of the principal is connected, and is not any more.
  void Hold(const std::string& principal) { ++held_[principal]; }
  void LetGo(const std::string& principal);
  size_t CountHeld(const std::string& principal) const;

 private:
  static std::string RankKey(const v1::Identity& identity);
  static std::string ProcessKey(const v1::Identity& identity);

  // A run may have two processes of one rank for a moment.
  std::map<std::string, std::set<std::string>> sessions_;
  std::map<std::string, size_t> held_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_AGENT_INDEX_H_
