// SPDX-License-Identifier: Apache-2.0
#include "collector/control/leaf_registry.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kLeafNameBytes = 32;
constexpr size_t kMaxTextBytes = 255;
constexpr int kMaxFailed = 16;
constexpr size_t kMaxDiskChanges = 1024;
// Limit for the reserved places that are examined for one request.
constexpr size_t kMostLookedAt = 1024;
// A leaf counts as full for a rank that could use another one when it has this
// many times its share.
constexpr double kMaxShare = 1.25;
constexpr absl::Duration kForgettingInterval = absl::Seconds(1);

bool IsLeafName(const std::string& name) {
  return name.size() == kLeafNameBytes &&
         absl::c_all_of(name, [](unsigned char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

absl::Status CheckIdentity(const v1::Identity& identity) {
  if (identity.run().empty() || identity.run().size() > kMaxTextBytes ||
      identity.host().size() > kMaxTextBytes ||
      (identity.has_rank() &&
       (identity.rank() < 0 || identity.rank() > kMaxRank))) {
    return absl::InvalidArgumentError(
        "a run's name has 1 to 255 bytes, a host at most 255, a rank is 0 to "
        "1,000,000");
  }
  return absl::OkStatus();
}

// The order of leaves for a key is pseudo-random, and the same on every root.
uint64_t Score(const std::string& key, const std::string& leaf) {
  const std::string text = absl::StrCat(leaf, key);
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace

LeafRegistry::RankKey LeafRegistry::KeyOf(const v1::Identity& identity) {
  return {identity.run(),
          identity.has_rank()
              ? absl::StrCat("r", identity.rank())
              : absl::StrCat(identity.host(), " ", identity.pid())};
}

absl::Status LeafRegistry::Check(const v1::LeafReport& untrusted) const {
  if (!IsLeafName(untrusted.leaf())) {
    return absl::InvalidArgumentError(
        "a leaf's name has 32 hexadecimal digits");
  }
  if (untrusted.address().size() > 2 * kMaxTextBytes)
    return absl::InvalidArgumentError("a leaf's address is too long");
  RP_RETURN_IF_ERROR(
      ParseHostPort(untrusted.address(), /*min_port=*/1).status());
  if (options_.own_addresses.find(untrusted.address()) !=
      options_.own_addresses.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the leaf says that ranks reach it at ", untrusted.address(),
        ", which is the root's own address: that would be a loop; "
        "give its own with --advertise"));
  }
  for (const v1::AgentInfo& agent : untrusted.agents()) {
    RP_RETURN_IF_ERROR(CheckIdentity(agent.identity()));
    if (agent.framework_version().size() > kMaxTextBytes)
      return absl::InvalidArgumentError("a version is longer than 255 bytes");
  }
  return absl::OkStatus();
}

bool LeafRegistry::IsThere(const Leaf& leaf, MonotonicTime now) const {
  return leaf.link != 0 && absl::FromChrono(now - leaf.heard) < kSilence;
}

bool LeafRegistry::MayReturn(const Leaf& leaf, MonotonicTime now) const {
  return leaf.link == 0 && absl::FromChrono(now - leaf.heard) < kGrace;
}

absl::StatusOr<uint64_t> LeafRegistry::Connect(
    const v1::LeafReport& untrusted, const std::string& who,
    std::function<void(const absl::Status&)> end, MonotonicTime now) {
  RP_RETURN_IF_ERROR(Check(untrusted));
  absl::MutexLock lock(&mutex_);
  const auto known = leaves_.find(untrusted.leaf());
  if (known == leaves_.end() && leaves_.size() >= options_.max_leaves) {
    Forget(now);
    if (leaves_.size() >= options_.max_leaves) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", options_.max_leaves, " leaves"));
    }
  }
  if (known != leaves_.end() && known->second.who != who) {
    return absl::PermissionDeniedError(
        "a leaf of this name is connected with another token");
  }
  Leaf& leaf = leaves_[untrusted.leaf()];
  if (leaf.link != 0) {
    leaf_of_link_.erase(leaf.link);
    leaf.end(
        absl::AbortedError("another stream of this leaf has taken its place; "
                           "if two processes have "
                           "copies of one data directory, end one of them"));
  }
  leaf.link = ++links_;
  leaf.who = who;
  leaf.end = std::move(end);
  leaf_of_link_[leaf.link] = untrusted.leaf();
  TakeAgents(untrusted.leaf(), untrusted, now);
  return leaf.link;
}

absl::Status LeafRegistry::Report(uint64_t link,
                                  const v1::LeafReport& untrusted,
                                  MonotonicTime now) {
  RP_RETURN_IF_ERROR(Check(untrusted));
  absl::MutexLock lock(&mutex_);
  const auto name = leaf_of_link_.find(link);
  if (name == leaf_of_link_.end()) return absl::OkStatus();
  if (name->second != untrusted.leaf()) {
    return absl::InvalidArgumentError("a leaf does not change its name");
  }
  TakeAgents(name->second, untrusted, now);
  return absl::OkStatus();
}

void LeafRegistry::TakeAgents(const std::string& name,
                              const v1::LeafReport& report, MonotonicTime now) {
  Leaf& leaf = leaves_[name];
  leaf.address = report.address();
  leaf.max_ranks = std::min(report.max_ranks(), kMaxRanksOfALeaf);
  leaf.heard = now;
  if (report.only_events()) return;
  for (const v1::AgentInfo& agent : leaf.agents) {
    const auto place = places_.find(KeyOf(agent.identity()));
    if (place != places_.end() && place->second.leaf == name)
      place->second.connected = false;
  }
  leaf.agents.assign(report.agents().begin(), report.agents().end());
  TakeDisk(report, &leaf);
  for (const v1::AgentInfo& agent : leaf.agents) {
    if (agent.connected())
      Put(KeyOf(agent.identity()), name, /*connected=*/true, /*who=*/"", now);
  }
}

void LeafRegistry::TakeDisk(const v1::LeafReport& report, Leaf* leaf) {
  const auto level = [](const std::optional<v1::DiskState>& disk) {
    return disk.has_value() && disk->level() != v1::DiskState::LEVEL_UNSPECIFIED
               ? disk->level()
               : v1::DiskState::LEVEL_ROOM;
  };
  const v1::DiskState::Level before = level(leaf->disk);
  leaf->disk.reset();
  if (report.has_disk()) {
    leaf->disk = report.disk();
    leaf->disk->set_collector(leaf->address);
  }
  if (level(leaf->disk) == before || !leaf->disk.has_value() ||
      disk_changes_.size() >= kMaxDiskChanges)
    return;
  disk_changes_.push_back(*leaf->disk);
}

std::vector<v1::DiskState> LeafRegistry::TakeDiskChanges() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(disk_changes_, {});
}

void LeafRegistry::Unreserve(const Place& place) {
  const auto of_who = reserved_.find(place.who);
  of_who->second.erase(place.reserved);
  if (of_who->second.empty()) reserved_.erase(of_who);
}

LeafRegistry::Places::iterator LeafRegistry::Drop(Places::iterator place) {
  --leaves_[place->second.leaf].ranks;
  if (!place->second.came) Unreserve(place->second);
  return places_.erase(place);
}

std::string LeafRegistry::TakeReserved(const std::string& who,
                                       const std::set<std::string>& leaves) {
  const auto own = reserved_.find(who);
  const size_t have = own == reserved_.end() ? 0 : own->second.size();
  const auto most =
      absl::c_max_element(reserved_, [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
      });
  // Not to and fro between two.
  if (most == reserved_.end() || most->second.size() <= have + 1) return "";
  size_t looked = 0;
  for (const RankKey& key : most->second) {
    if (++looked > kMostLookedAt) break;
    const auto place = places_.find(key);
    const std::string leaf = place->second.leaf;
    if (leaves.count(leaf) == 0 ||
        leaves_[leaf].ranks > leaves_[leaf].max_ranks)
      continue;
    Drop(place);
    return leaf;
  }
  return "";
}

void LeafRegistry::Put(const RankKey& key, const std::string& leaf,
                       bool connected, const std::string& who,
                       MonotonicTime now) {
  if (places_.size() >= options_.max_ranks && !places_.contains(key)) {
    Forget(now);
    // Without a place the rank stays with its leaf until it asks for one.
    if (places_.size() >= options_.max_ranks) return;
  }
  const auto [it, is_new] = places_.try_emplace(key);
  Place& place = it->second;
  if (!place.came) {
    std::list<RankKey>& of_who = reserved_[is_new ? who : place.who];
    if (is_new) {
      place.who = who;
      place.reserved = of_who.insert(of_who.end(), key);
    } else {
      of_who.splice(of_who.end(), of_who, place.reserved);
    }
    if (connected) {
      Unreserve(place);
      place.came = true;
    }
  }
  if (place.leaf != leaf) {
    if (!place.leaf.empty()) --leaves_[place.leaf].ranks;
    ++leaves_[leaf].ranks;
    place.leaf = leaf;
  }
  place.heard = now;
  place.connected = connected;
}

void LeafRegistry::Forget(MonotonicTime now) {
  for (auto it = places_.begin(); it != places_.end();) {
    const Leaf& leaf = leaves_[it->second.leaf];
    const bool stays = (it->second.connected && IsThere(leaf, now)) ||
                       absl::FromChrono(now - it->second.heard) <
                           (it->second.came ? kPlacedFor : kReservedFor);
    it = stays ? std::next(it) : Drop(it);
  }
  for (auto it = leaves_.begin(); it != leaves_.end();) {
    const bool stays = it->second.link != 0 || it->second.ranks > 0 ||
                       absl::FromChrono(now - it->second.heard) < kPlacedFor;
    it = stays ? std::next(it) : leaves_.erase(it);
  }
}

void LeafRegistry::Disconnected(uint64_t link, MonotonicTime now) {
  absl::MutexLock lock(&mutex_);
  const auto name = leaf_of_link_.find(link);
  if (name == leaf_of_link_.end()) return;
  Leaf& leaf = leaves_[name->second];
  leaf.link = 0;
  leaf.end = nullptr;
  leaf.heard = now;
  leaf_of_link_.erase(name);
}

absl::StatusOr<v1::FoundCollector> LeafRegistry::Find(
    const v1::FindCollectorRequest& untrusted, MonotonicTime now,
    const std::string& who) {
  RP_RETURN_IF_ERROR(CheckIdentity(untrusted.identity()));
  if (untrusted.replica().size() > kMaxTextBytes ||
      untrusted.failed_size() > kMaxFailed) {
    return absl::InvalidArgumentError(
        "a replica's text has at most 255 bytes, and at most 16 leaves failed");
  }
  const std::set<std::string> failed(untrusted.failed().begin(),
                                     untrusted.failed().end());
  const RankKey key = KeyOf(untrusted.identity());
  absl::MutexLock lock(&mutex_);
  if (now >= next_forgetting_) {
    Forget(now);
    next_forgetting_ = now + absl::ToChronoNanoseconds(kForgettingInterval);
  }
  const auto answer = [&](const std::string& name) {
    mutex_.AssertHeld();
    const auto place = places_.find(key);
    Put(key, name,
        place != places_.end() && place->second.leaf == name &&
            place->second.connected,
        who, now);
    v1::FoundCollector found;
    found.set_leaf(name);
    found.set_address(leaves_[name].address);
    return found;
  };
  if (const auto place = places_.find(key);
      place != places_.end() && !failed.contains(place->second.leaf)) {
    const Leaf& leaf = leaves_[place->second.leaf];
    if (IsThere(leaf, now)) return answer(place->second.leaf);
    if (MayReturn(leaf, now)) {
      return absl::AbortedError(absl::StrCat(
          "the leaf of this rank, ", leaf.address, ", has just disconnected; ",
          "it is given ", absl::FormatDuration(kGrace), " to come back"));
    }
  }
  if (absl::FromChrono(now - began_) < kSettling) {
    return absl::AbortedError(
        "it has begun a moment ago and waits for its leaves");
  }
  size_t there = 0, ranks = 0;
  std::vector<std::pair<uint64_t, std::string>> order;
  const std::string hashed = absl::StrCat(
      key.first, "\n",
      untrusted.replica().empty() ? key.second : "=" + untrusted.replica());
  for (const auto& [name, leaf] : leaves_) {
    if (!IsThere(leaf, now)) continue;
    ++there;
    ranks += leaf.ranks;
    if (!failed.contains(name)) order.emplace_back(Score(hashed, name), name);
  }
  if (there == 0) return absl::AbortedError("no leaf is connected");
  if (order.empty()) {
    return absl::AbortedError(
        absl::StrCat("none of its ", there, " leaves was reached"));
  }
  absl::c_sort(order, std::greater<>());
  // Copies of one replica stay together up to what a leaf takes.
  const double share =
      kMaxShare * static_cast<double>(ranks + 1) / static_cast<double>(there);
  for (const bool within_share : {untrusted.replica().empty(), false}) {
    for (const auto& [score, name] : order) {
      const Leaf& leaf = leaves_[name];
      if (leaf.ranks >= leaf.max_ranks ||
          (within_share && static_cast<double>(leaf.ranks + 1) > share + 1))
        continue;
      return answer(name);
    }
  }
  std::set<std::string> reached;
  for (const auto& [score, name] : order) reached.insert(name);
  if (const std::string leaf = TakeReserved(who, reached); !leaf.empty())
    return answer(leaf);
  return absl::ResourceExhaustedError(absl::StrCat(
      "all of its ", there, " leaves have their maximum number of ranks"));
}

v1::ListAgentsResponse LeafRegistry::ListAgents(const std::string& run,
                                                MonotonicTime now) const {
  v1::ListAgentsResponse response;
  absl::MutexLock lock(&mutex_);
  std::map<std::string, int64_t> furthest;
  for (const auto& [name, leaf] : leaves_) {
    if (!IsThere(leaf, now)) continue;
    if (leaf.disk.has_value()) *response.add_disks() = *leaf.disk;
    for (const v1::AgentInfo& agent : leaf.agents) {
      if (!run.empty() && agent.identity().run() != run) continue;
      // If the rank has moved to another leaf, that one reports it.
      const auto place = places_.find(KeyOf(agent.identity()));
      if (!agent.connected() && place != places_.end() &&
          place->second.leaf != name)
        continue;
      *response.add_agents() = agent;
      int64_t& step =
          furthest.try_emplace(agent.identity().run(), -1).first->second;
      if (agent.connected()) step = std::max(step, agent.step());
    }
  }
  // Each leaf only knows the furthest of its own ranks, so the lag is computed
  // here.
  for (v1::AgentInfo& agent : *response.mutable_agents()) {
    agent.set_lag_steps(
        std::max<int64_t>(furthest[agent.identity().run()] - agent.step(), 0));
  }
  absl::c_sort(*response.mutable_agents(), [](const v1::AgentInfo& a,
                                              const v1::AgentInfo& b) {
    const auto place = [](const v1::AgentInfo& agent) {
      const v1::Identity& id = agent.identity();
      return std::make_tuple(id.run(), id.has_rank() ? id.rank() : INT64_MAX,
                             id.host(), id.pid(), id.incarnation());
    };
    return place(a) < place(b);
  });
  return response;
}

std::vector<std::string> LeafRegistry::LeavesOf(const std::string& run,
                                                MonotonicTime now) const {
  std::vector<std::string> addresses;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, leaf] : leaves_) {
    if (!IsThere(leaf, now)) continue;
    const bool has =
        absl::c_any_of(leaf.agents, [&](const v1::AgentInfo& agent) {
          return agent.connected() && agent.identity().run() == run;
        });
    if (run.empty() || has) addresses.push_back(leaf.address);
  }
  return addresses;
}

}  // namespace rankprobe
