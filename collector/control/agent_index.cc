// SPDX-License-Identifier: Apache-2.0
#include "collector/control/agent_index.h"

#include "absl/strings/str_cat.h"

namespace rankprobe {

// No run's name has a zero byte.
std::string AgentIndex::RankKey(const v1::Identity& identity) {
  if (!identity.has_rank()) return "";
  return absl::StrCat(identity.run(), std::string(1, '\0'), "r",
                      identity.rank());
}

std::string AgentIndex::ProcessKey(const v1::Identity& identity) {
  return absl::StrCat(identity.run(), std::string(1, '\0'), "p",
                      identity.incarnation());
}

void AgentIndex::Add(const std::string& session, const v1::Identity& identity) {
  for (const std::string& key : {RankKey(identity), ProcessKey(identity)})
    if (!key.empty()) sessions_[key].insert(session);
}

void AgentIndex::Remove(const std::string& session,
                        const v1::Identity& identity) {
  for (const std::string& key : {RankKey(identity), ProcessKey(identity)}) {
    const auto it = sessions_.find(key);
    if (it == sessions_.end()) continue;
    it->second.erase(session);
    if (it->second.empty()) sessions_.erase(it);
  }
}

std::set<std::string> AgentIndex::Find(const v1::Identity& identity) const {
  std::set<std::string> found;
  for (const std::string& key : {RankKey(identity), ProcessKey(identity)}) {
    const auto it = sessions_.find(key);
    if (it != sessions_.end())
      found.insert(it->second.begin(), it->second.end());
  }
  return found;
}

void AgentIndex::LetGo(const std::string& principal) {
  const auto it = held_.find(principal);
  if (it != held_.end() && --it->second == 0) held_.erase(it);
}

size_t AgentIndex::CountHeld(const std::string& principal) const {
  const auto it = held_.find(principal);
  return it == held_.end() ? 0 : it->second;
}

}  // namespace rankprobe
