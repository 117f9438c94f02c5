// SPDX-License-Identifier: Apache-2.0
// Sessions of agents, connected or recently disconnected: finds those of a rank
// or process, limits them per principal and run, and sends directives.
//
// Ownership: ControlCore's. Not thread-safe: guarded by its lock. Senders only
// queue.
// Failure: a refused session changes nothing.
#ifndef RANKPROBE_COLLECTOR_CONTROL_SESSION_TABLE_H_
#define RANKPROBE_COLLECTOR_CONTROL_SESSION_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/auth/token_table.h"
#include "collector/control/step_pace.h"
#include "collector/store/run_registry.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

inline constexpr int64_t kMaxRank = 1000000;

// The peer of an agent's stream.
struct Peer {
  // The default is that of an open port.
  Principal principal =
      Principal::Of(Role::kOperator, std::string(Principal::kAnybody));
  // The port is open: the principal does not distinguish clients.
  bool anonymous = true;
  // Address as gRPC formats it.
  std::string address;
  // Ends the session when another connection has replaced it. Must only queue;
  // may be null.
  std::function<void(const absl::Status&)> end;
};

struct AgentSession {
  // The newest state to save in the store; one save at a time is queued for it.
  struct DumpingNote {
    std::atomic<Dumping> dumping{Dumping::kNo};
    std::atomic<bool> queued{false};
  };

  std::string id;
  v1::Identity identity;
  std::function<void(const v1::Directive&)> sender;
  bool connected = true;
  int64_t step = -1;
  int64_t step_ns = 0;
  StepPace pace;
  uint64_t epoch = 0;
  bool dumping = false;
  uint64_t received_bytes = 0;
  int64_t pending_bytes = 0;
  // The way in which it sends payloads, as it reports.
  std::string lane;
  uint64_t lost_records = 0;
  uint64_t lost_payloads = 0;
  std::string framework_version;
  // The value of AgentInfo.other_plan.
  std::string other_plan;
  // Why its config file cannot be used; empty if it can.
  std::string config_fault;
  // It reported this; config_fault has the reason.
  bool cannot_record = false;
  // A plan whose commit came too late for it and that was sent to it for its
  // next step (0: none), and the reason.
  uint64_t late_epoch = 0;
  std::string late_reason;
  absl::Time last_heard;
  // Wall-clock time, for display.
  absl::Time connected_at;
  // When its step last changed.
  absl::Time last_moved;
  bool farewell = false;
  // What it could not deliver, appended to "the process has ended".
  std::string undelivered;
  // The value of `dumping` in the store; absent if it is not certain.
  std::optional<Dumping> noted_dumping;
  std::shared_ptr<DumpingNote> note = std::make_shared<DumpingNote>();
  Peer peer;
  // The value of IncarnationRow.principal.
  std::string stored_principal;
  // The newest plan that was sent to it in this session: an edit of its file
  // cannot have been read under a later one, whatever the agent says.
  uint64_t sent_epoch = 0;
  // Digest of the content of its config file, and the newest plan it knew when
  // it read that; empty if not needed (an open port).
  std::string file_state;
  uint64_t file_seen = 0;

  // Returns an event of this session at its step.
  v1::Event EventOf(v1::Event::Kind kind) const;
};

// Returns "process 12 on HOST", for display.
std::string DescribeProcess(const v1::Identity& identity);

// The ranks that a process may act for: those of its token, if that is bound to
// ranks and other ranks are connected too; else all.
struct Reach {
  bool all = true;
  // The connected ones, unless `all`.
  std::vector<int64_t> ranks;
  // Domain of the token; empty: all.
  std::string domain;
};

class SessionTable {
 public:
  using Sessions = std::map<std::string, AgentSession>;

  // `agents` is the number of principals that share the sessions.
  // `one_of_several`: ranks may have plans of another collector.
  SessionTable(size_t max_sessions, size_t agents, bool one_of_several)
      : max_sessions_(max_sessions),
        agents_(agents),
        one_of_several_(one_of_several) {}

  // Returns null if there is none.
  AgentSession* Find(const std::string& id);
  AgentSession* FindConnected(const std::string& id);
  Sessions& all() { return sessions_; }
  // Returns the sessions of the same rank or process.
  std::vector<const AgentSession*> SameAs(const v1::Identity& identity) const;
  // Returns the connected sessions in the order of their ids; all ranks if
  // `ranks` is empty.
  std::vector<AgentSession*> ConnectedOf(
      const std::string& run, const std::vector<int64_t>& ranks = {});
  // Returns the furthest plausible step of the connected ranks; -1 if none has
  // begun.
  int64_t FurthestStep(const std::string& run);

  // RESOURCE_EXHAUSTED if there is no room, even after dropping disconnected
  // sessions.
  absl::Status CheckRoom(const v1::Identity& identity, const Peer& peer);
  // ALREADY_EXISTS if a live process other than `self` has the rank; both are
  // named.
  absl::Status CheckRankFree(const v1::Identity& identity,
                             const std::string& self) const;
  // Drops the sessions of this process and this rank. Returns the connected
  // one, or "". ALREADY_EXISTS if it is connected and the new connection has
  // not `proved` to be the same process.
  absl::StatusOr<std::string> TakeOver(const v1::Identity& identity,
                                       bool proved);
  AgentSession* Add(const std::string& id, const v1::Identity& identity,
                    Peer peer);
  void SetIdentity(AgentSession* agent, const v1::Identity& identity);
  void Disconnect(AgentSession* agent);
  // Drops disconnected sessions after ten minutes; until then they are visible
  // in `status`.
  void ForgetGone(absl::Time now);

  // Returns the connected processes of its run that have another token than
  // `speaker`, if that is bound to ranks. With `same_file`, without those whose
  // config file has the same content.
  std::vector<const AgentSession*> OthersThan(const AgentSession& speaker,
                                              bool same_file);
  Reach ReachOf(const AgentSession& speaker);
  static std::string DomainOf(const Principal& principal);
  // Returns the number of receivers.
  uint64_t Send(const v1::Directive& directive, const std::string& run,
                const Reach& reach = {});

  // Sends to one rank and records the epoch of a plan.
  void SendPlan(AgentSession* agent, const v1::Directive& directive);
  void NoteSent(const v1::Identity& identity, uint64_t epoch);
  // Returns whether the process has its plan of this epoch from another
  // collector.
  bool IsForeign(const v1::Identity& identity, uint64_t epoch) const;

 private:
  Sessions::iterator Forget(Sessions::iterator agent);
  // Returns the number of connected sessions of a principal, or of a run.
  size_t CountHeld(const std::string& holder) const;
  void LetGo(const std::string& holder);
  void Index(const AgentSession& agent);
  void Unindex(const AgentSession& agent);

  const size_t max_sessions_;
  const size_t agents_;
  const bool one_of_several_;
  Sessions sessions_;
  // Ids by rank and by process of a run, because each Hello of thousands of
  // ranks looks them up. A run can have two processes of one rank for a moment.
  std::map<std::string, std::set<std::string>> same_;
  std::map<std::string, size_t> held_;
  // If one_of_several: epochs that were sent from here, by incarnation.
  std::map<uint64_t, std::set<uint64_t>> sent_plans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_SESSION_TABLE_H_
