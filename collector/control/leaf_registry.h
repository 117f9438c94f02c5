// SPDX-License-Identifier: Apache-2.0
// A root's registry of leaves: which leaves there are, which ranks they have,
// and which leaf a rank is to come to.
//
// A rank stays with the leaf that it was placed in or that reports it. Another
// gets the first leaf of its own order of all leaves (rendezvous hashing over the
// run and what its data-parallel copies share, else its rank) that has room, so
// that a leaf more or less moves few ranks. A leaf that goes is given kGrace to
// come back; then its ranks are placed anew when they ask.
//
// Ownership: one per root. Threads: thread-safe, one mutex, no waits; `end` of a
// link is called with it held and must only queue. Time is the caller's.
// Failure: bad input is answered with a status and changes nothing. Leaves, ranks
// and texts are bounded.
#ifndef RANKPROBE_COLLECTOR_CONTROL_LEAF_REGISTRY_H_
#define RANKPROBE_COLLECTOR_CONTROL_LEAF_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class LeafRegistry {
 public:
  // Reports come every second.
  static constexpr absl::Duration kSilence = absl::Seconds(5);
  static constexpr absl::Duration kGrace = absl::Seconds(3);
  // A root that has just begun hears of all leaves first.
  static constexpr absl::Duration kSettling = absl::Seconds(2);
  // For a rank that was at its leaf to come back to it.
  static constexpr absl::Duration kPlacedFor = absl::Seconds(60);
  // For one that was told of its leaf to come there: its place is kept so long.
  static constexpr absl::Duration kReservedFor = absl::Seconds(10);
  // As measured for a switch of one collector.
  static constexpr uint32_t kMaxRanksOfALeaf = 1024;

  struct Options {
    size_t max_leaves = 1024;
    size_t max_ranks = 1 << 18;
    // The root's own, HOST:PORT: a leaf that names one of them as its address
    // would have ranks go round in a circle.
    std::set<std::string> own_addresses;
  };
  LeafRegistry(const Options& options, MonotonicTime began)
      : options_(options), began_(began) {}

  // The first report of a stream. `who`: its principal; the name of a leaf is its
  // own as long as it is known. `end` ends the stream when another takes its place.
  // INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED.
  absl::StatusOr<uint64_t> Connect(const v1::LeafReport& untrusted,
                                   const std::string& who,
                                   std::function<void(const absl::Status&)> end,
                                   MonotonicTime now);
  // Later ones; an error ends the stream.
  absl::Status Report(uint64_t link, const v1::LeafReport& untrusted,
                      MonotonicTime now);
  void Disconnected(uint64_t link, MonotonicTime now);

  // ABORTED: none now, ask again. RESOURCE_EXHAUSTED: no room in any. `who`: the
  // principal. Of places that are kept for ranks which have not come, the one that
  // has most of them gives the oldest to another who finds none, so that nobody
  // takes all by asking.
  absl::StatusOr<v1::FoundCollector> Find(
      const v1::FindCollectorRequest& untrusted, MonotonicTime now,
      const std::string& who = "");

  // Of all leaves that are there, and how full their disks are.
  v1::ListAgentsResponse ListAgents(const std::string& run,
                                    MonotonicTime now) const;
  // Of leaves whose disk has come to another level since this was asked last; the
  // newest ones, by the leaf's address.
  std::vector<v1::DiskState> TakeDiskChanges();
  // Addresses of the leaves that have ranks of the run, of all leaves when it is
  // empty.
  std::vector<std::string> LeavesOf(const std::string& run,
                                    MonotonicTime now) const;

 private:
  // Run, and "r7" or "host pid".
  using RankKey = std::pair<std::string, std::string>;
  struct Leaf {
    std::string address;
    std::string who;
    uint32_t max_ranks = 0;
    // 0: not connected.
    uint64_t link = 0;
    std::function<void(const absl::Status&)> end;
    MonotonicTime heard;
    std::vector<v1::AgentInfo> agents;
    std::optional<v1::DiskState> disk;
    // Ranks that are placed in it.
    size_t ranks = 0;
  };
  using Leaves = std::map<std::string, Leaf>;
  struct Place {
    std::string leaf;
    // Of the last question, or of the last report that has it.
    MonotonicTime heard;
    // The leaf says that it is connected.
    bool connected = false;
    // It was connected once. Until then the place is one of `who` in reserved_.
    bool came = false;
    std::string who;
    std::list<RankKey>::iterator reserved;
  };
  using Places = std::map<RankKey, Place>;

  static RankKey KeyOf(const v1::Identity& identity);
  absl::Status Check(const v1::LeafReport& untrusted) const;
  bool IsThere(const Leaf& leaf, MonotonicTime now) const;
  // It has gone so lately that it may come back.
  bool MayReturn(const Leaf& leaf, MonotonicTime now) const;
  void TakeAgents(const std::string& name, const v1::LeafReport& report,
                  MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Put(const RankKey& key, const std::string& leaf, bool connected,
           const std::string& who, MonotonicTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeDisk(const v1::LeafReport& report, Leaf* leaf)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unreserve(const Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Places::iterator Drop(Places::iterator place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a kept place in one of `leaves` from whoever has the most, which are more
  // than `who` has. The leaf; empty: there is none.
  std::string TakeReserved(const std::string& who,
                           const std::set<std::string>& leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those that did not come, or whose leaf has gone for long.
  void Forget(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const MonotonicTime began_;
  mutable absl::Mutex mutex_;
  uint64_t links_ ABSL_GUARDED_BY(mutex_) = 0;
  Leaves leaves_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> leaf_of_link_ ABSL_GUARDED_BY(mutex_);
  Places places_ ABSL_GUARDED_BY(mutex_);
  // Places of ranks that have not come, by principal, the oldest first.
  std::map<std::string, std::list<RankKey>> reserved_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::DiskState> disk_changes_ ABSL_GUARDED_BY(mutex_);
  // Not with each question: it looks at all of them.
  MonotonicTime next_forgetting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_LEAF_REGISTRY_H_
