// SPDX-License-Identifier: Apache-2.0
#include "collector/store/partials.h"

#include <utility>

#include "absl/strings/match.h"

namespace rankprobe {

Partial* PartialTable::Find(const std::string& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  uses_.splice(uses_.end(), uses_, it->second.use);
  return &it->second.partial;
}

Partial* PartialTable::Put(const std::string& key, Partial partial) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) {
    it->second.partial = std::move(partial);
    return Find(key);
  }
  const auto use = uses_.insert(uses_.end(), key);
  return &entries_.emplace(key, Entry{std::move(partial), use})
              .first->second.partial;
}

void PartialTable::Erase(absl::string_view prefix) {
  auto it = entries_.lower_bound(prefix);
  while (it != entries_.end() && absl::StartsWith(it->first, prefix)) {
    uses_.erase(it->second.use);
    it = entries_.erase(it);
  }
}

void PartialTable::Trim() {
  while (entries_.size() > limit_) {
    entries_.erase(entries_.find(uses_.front()));
    uses_.pop_front();
  }
}

}  // namespace rankprobe
