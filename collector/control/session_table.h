// SPDX-License-Identifier: Apache-2.0
// Sessions of agents, connected or recently disconnected: finds those of a rank or process,
// limits them per principal and run, and sends directives.
//
// Ownership: ControlCore's. Not thread-safe: guarded by its lock. Senders only queue.
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

// Who is on the other end of an agent's stream.
struct Peer {
  // An open port's, unless it is told otherwise.
  Principal principal = Principal::Of(Role::kOperator, "anybody");
  // The port is open: the principal tells nobody apart.
  bool anonymous = true;
  // Address, as gRPC prints it.
  std::string address;
  // Ends its session when another connection has taken its place. Only queues;
  // may be null.
  std::function<void(const absl::Status&)> end;
};

struct AgentSession {
  // What the store is to be told: the newest of it, once.
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
  // How its payloads come, as it says.
  std::string lane;
  uint64_t lost_records = 0;
  uint64_t lost_payloads = 0;
  std::string framework_version;
  // AgentInfo.other_plan.
  std::string other_plan;
  // Why its config file cannot be used; empty: it can.
  std::string config_fault;
  // It has said so: config_fault has the reason.
  bool cannot_record = false;
  // The plan whose commit came too late for it, and which it was brought for
  // its next step; 0: none. And why.
  uint64_t late_epoch = 0;
  std::string late_reason;
  absl::Time last_heard;
  // By the clock on the wall, for a person.
  absl::Time connected_at;
  // When its step last changed.
  absl::Time last_moved;
  bool farewell = false;
  // What it could not deliver, behind "the process has ended".
  std::string undelivered;
  // What the store is to know of `dumping`; absent: that is not certain.
  std::optional<Dumping> noted_dumping;
  std::shared_ptr<DumpingNote> note = std::make_shared<DumpingNote>();
  Peer peer;
  // IncarnationRow.principal.
  std::string stored_principal;
  // The newest plan it was sent in this session: no edit of its file was read
  // under a later one, whatever it says.
  uint64_t sent_epoch = 0;
  // Digest of what its config file says, and the newest plan it knew of when
  // it read that; empty where nobody needs it (an open port).
  std::string file_state;
  uint64_t file_seen = 0;

  // An event of it, at its step.
  v1::Event EventOf(v1::Event::Kind kind) const;
};

// "process 12 on HOST", for a person.
std::string DescribeProcess(const v1::Identity& identity);

// Whom the word of a process reaches: the ranks of its token, where that is
// bound to ranks and others are there too; else all.
struct Reach {
  bool all = true;
  // Those that are connected, unless it is all.
  std::vector<int64_t> ranks;
  // Of the token; empty: all.
  std::string domain;
};

class SessionTable {
 public:
  using Sessions = std::map<std::string, AgentSession>;

  // `agents`: principals that share the sessions. `one_of_several`: ranks may have
  // plans of another collector.
  SessionTable(size_t max_sessions, size_t agents, bool one_of_several)
      : max_sessions_(max_sessions),
        agents_(agents),
        one_of_several_(one_of_several) {}

  // Null: there is none.
  AgentSession* Find(const std::string& id);
  AgentSession* FindConnected(const std::string& id);
  Sessions& all() { return sessions_; }
  // Sessions of the same rank or process.
  std::vector<const AgentSession*> SameAs(const v1::Identity& identity) const;
  // In the order of their ids; `ranks` empty: all.
  std::vector<AgentSession*> ConnectedOf(
      const std::string& run, const std::vector<int64_t>& ranks = {});
  // Of the connected ranks whose step can be believed; -1: none has begun.
  int64_t FurthestStep(const std::string& run);

  // RESOURCE_EXHAUSTED. Forgets those that are gone when there is no room
  // otherwise.
  absl::Status CheckRoom(const v1::Identity& identity, const Peer& peer);
  // ALREADY_EXISTS: another live process than `self` has the rank; both are named.
  absl::Status CheckRankFree(const v1::Identity& identity,
                             const std::string& self) const;
  // Forgets the sessions of this process and this rank. Returns the connected one, or
  // "". ALREADY_EXISTS: it is connected, and the new connection has not `proved` to be
  // the same process.
  absl::StatusOr<std::string> TakeOver(const v1::Identity& identity,
                                       bool proved);
  AgentSession* Add(const std::string& id, const v1::Identity& identity,
                    Peer peer);
  void SetIdentity(AgentSession* agent, const v1::Identity& identity);
  void Disconnect(AgentSession* agent);
  // Disconnected sessions stay visible in `status` for ten minutes.
  void ForgetGone(absl::Time now);

  // Connected processes of its run that have another token than `speaker`, if
  // that is bound to ranks. With `same_file`, without those that read the same
  // in their config file.
  std::vector<const AgentSession*> OthersThan(const AgentSession& speaker,
                                              bool same_file);
  Reach ReachOf(const AgentSession& speaker);
  static std::string DomainOf(const Principal& principal);
  // Returns the number of receivers.
  uint64_t Send(const v1::Directive& directive, const std::string& run,
                const Reach& reach = {});

  // To one rank; notes the epoch of a plan.
  void SendPlan(AgentSession* agent, const v1::Directive& directive);
  void NoteSent(const v1::Identity& identity, uint64_t epoch);
  // The process has its plan of this epoch from elsewhere.
  bool IsForeign(const v1::Identity& identity, uint64_t epoch) const;

 private:
  Sessions::iterator Forget(Sessions::iterator agent);
  // Connected sessions of a principal, or of a run.
  size_t CountHeld(const std::string& holder) const;
  void LetGo(const std::string& holder);
  void Index(const AgentSession& agent);
  void Unindex(const AgentSession& agent);

  const size_t max_sessions_;
  const size_t agents_;
  const bool one_of_several_;
  Sessions sessions_;
  // Ids by rank and by process of a run: each Hello of thousands of ranks looks here.
  // A run can have two processes of one rank for a moment.
  std::map<std::string, std::set<std::string>> same_;
  std::map<std::string, size_t> held_;
  // Of one of several: epochs that were sent from here, by incarnation.
  std::map<uint64_t, std::set<uint64_t>> sent_plans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_SESSION_TABLE_H_
