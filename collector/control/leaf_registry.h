// SPDX-License-Identifier: Apache-2.0
// A root's registry of leaves: which leaves exist, which ranks they have, and
// which leaf a rank is assigned to.
//
// A rank stays with the leaf that it was placed in or that reports it. A new
// rank gets the first leaf with room in its own order of all leaves (rendezvous
// hashing over the run and what its data-parallel copies share, else its rank),
// so that adding or removing a leaf moves few ranks. A leaf that disconnects
// has kGrace to return; then its ranks are placed again when they ask.
//
// Ownership: one per root. Threads: thread-safe, one mutex, no waits; `end` of
// a link is called with it held and must only queue. The caller supplies the
// time.
// Failure: bad input is answered with a status and changes nothing. The numbers
// of leaves and ranks and the lengths of texts are bounded.
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
  // A leaf that is silent for this long counts as unreachable; it reports every
  // second.
  static constexpr absl::Duration kSilence = absl::Seconds(5);
  static constexpr absl::Duration kGrace = absl::Seconds(3);
  // A root that has just started waits this long for reports of all leaves.
  static constexpr absl::Duration kSettling = absl::Seconds(2);
  // How long the place of a rank that was connected to its leaf is kept.
  static constexpr absl::Duration kPlacedFor = absl::Seconds(60);
  // How long a place is reserved for a rank that was assigned a leaf and has
  // not connected to it.
  static constexpr absl::Duration kReservedFor = absl::Seconds(10);
  // Measured limit of ranks for a switch of one collector.
  static constexpr uint32_t kMaxRanksOfALeaf = 1024;

  struct Options {
    size_t max_leaves = 1024;
    size_t max_ranks = 1 << 18;
    // The root's own addresses, HOST:PORT. A leaf that reports one of them as
    // its own would send ranks back to the root in a loop.
    std::set<std::string> own_addresses;
  };
  LeafRegistry(const Options& options, MonotonicTime began)
      : options_(options), began_(began) {}

  // Handles the first report of a stream. `who` is its principal; the name of a
  // leaf belongs to it as long as the leaf is known. `end` ends the stream when
  // another one replaces it. INVALID_ARGUMENT, PERMISSION_DENIED,
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<uint64_t> Connect(const v1::LeafReport& untrusted,
                                   const std::string& who,
                                   std::function<void(const absl::Status&)> end,
                                   MonotonicTime now);
  // Handles later reports; an error ends the stream.
  absl::Status Report(uint64_t link, const v1::LeafReport& untrusted,
                      MonotonicTime now);
  void Disconnected(uint64_t link, MonotonicTime now);

  // Assigns a leaf. ABORTED: none is available now, ask again.
  // RESOURCE_EXHAUSTED: all are full. `who` is the principal. If no place is
  // left, the principal that has most reserved places of ranks that have not
  // connected loses its oldest, so that no client takes all places by asking.
  absl::StatusOr<v1::FoundCollector> Find(
      const v1::FindCollectorRequest& untrusted, MonotonicTime now,
      const std::string& who = "");

  // Returns the ranks of all connected leaves, and the disk states of the
  // leaves.
  v1::ListAgentsResponse ListAgents(const std::string& run,
                                    MonotonicTime now) const;
  // Returns the leaves whose disk level has changed since the last call; the
  // newest states, by the leaf's address.
  std::vector<v1::DiskState> TakeDiskChanges();
  // Returns the addresses of the leaves that have ranks of the run, or of all
  // leaves if `run` is empty.
  std::vector<std::string> LeavesOf(const std::string& run,
                                    MonotonicTime now) const;

 private:
  // The run, and "r7" or "host pid".
  using RankKey = std::pair<std::string, std::string>;
  struct Leaf {
    std::string address;
    std::string who;
    uint32_t max_ranks = 0;
    // 0 if not connected.
    uint64_t link = 0;
    std::function<void(const absl::Status&)> end;
    MonotonicTime heard;
    std::vector<v1::AgentInfo> agents;
    std::optional<v1::DiskState> disk;
    // Number of ranks placed in it.
    size_t ranks = 0;
  };
  using Leaves = std::map<std::string, Leaf>;
  struct Place {
    std::string leaf;
    // Time of the rank's last request, or of the last report that lists it.
    MonotonicTime heard;
    // The leaf reports the rank as connected.
    bool connected = false;
    // The rank was connected once. Until then the place is in the list of `who`
    // in reserved_.
    bool came = false;
    std::string who;
    std::list<RankKey>::iterator reserved;
  };
  using Places = std::map<RankKey, Place>;

  static RankKey KeyOf(const v1::Identity& identity);
  absl::Status Check(const v1::LeafReport& untrusted) const;
  bool IsThere(const Leaf& leaf, MonotonicTime now) const;
  // It disconnected so recently that it may return.
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
  // Takes a reserved place in one of `leaves` from the principal that has the
  // most, if those are more than `who` has. Returns the leaf, or empty if there
  // is none.
  std::string TakeReserved(const std::string& who,
                           const std::set<std::string>& leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops places whose rank did not connect, or whose leaf has been unreachable
  // for long.
  void Forget(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const MonotonicTime began_;
  mutable absl::Mutex mutex_;
  uint64_t links_ ABSL_GUARDED_BY(mutex_) = 0;
  Leaves leaves_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> leaf_of_link_ ABSL_GUARDED_BY(mutex_);
  Places places_ ABSL_GUARDED_BY(mutex_);
  // Places of ranks that have not connected, by principal, the oldest first.
  std::map<std::string, std::list<RankKey>> reserved_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::DiskState> disk_changes_ ABSL_GUARDED_BY(mutex_);
  // Dropping places scans all of them, so it does not run for each request.
  MonotonicTime next_forgetting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_LEAF_REGISTRY_H_
