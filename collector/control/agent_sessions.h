// SPDX-License-Identifier: Apache-2.0
// Agents' side of the control plane: admits processes, dispatches their events,
// lists them.
//
// Ownership: the control plane's. Thread-safe. Admit, RankKnown and
// ConfigEdited wait for the disk without the lock. Failure: a status; a refused
// process has changed nothing.
#ifndef RANKPROBE_COLLECTOR_CONTROL_AGENT_SESSIONS_H_
#define RANKPROBE_COLLECTOR_CONTROL_AGENT_SESSIONS_H_

#include "collector/control/config_edits.h"
#include "collector/control/control_core.h"
#include "collector/control/explanations.h"
#include "collector/control/newcomers.h"
#include "collector/control/plan_switches.h"
#include "collector/control/trigger_rules.h"

namespace rankprobe {

class AgentSessions {
 public:
  using Sender = std::function<void(const v1::Directive&)>;
  struct Admission {
    // Its session id is a secret: a client that knows it may upload as this
    // session.
    v1::Welcome welcome;
    v1::Identity identity;
    // The session that this one replaces (a reconnect); empty if none.
    std::string replaced_session;
  };
  // Receivers of events.
  struct Listeners {
    Newcomers* newcomers;
    PlanSwitches* switches;
    ConfigEdits* edits;
    TriggerRules* triggers;
    Explanations* explanations;
  };

  AgentSessions(ControlCore* core, const Listeners& listeners)
      : core_(core), to_(listeners) {}

  // Admits a process. INVALID_ARGUMENT; FAILED_PRECONDITION (protocol);
  // RESOURCE_EXHAUSTED (too many sessions, or new runs); ALREADY_EXISTS
  // (another live process has this rank; both are named); PERMISSION_DENIED
  // (the token does not allow the run or ranks, or the incarnation belongs to
  // another process).
  absl::StatusOr<Admission> Admit(const v1::Hello& hello, Sender sender,
                                  Peer peer = {});
  void OnEvent(const std::string& session, const v1::AgentEvent& event);
  void Disconnected(const std::string& session, const std::string& reason);
  // Sends a root's directive to a relayed rank; ignored if it has disconnected.
  void Say(const std::string& session, const v1::Directive& directive);

  v1::ListAgentsResponse List(const std::string& run) const;
  // Emits an event for each run that has a connected rank; if there is none,
  // one event without a run.
  void TellAllRuns(v1::Event::Kind kind, const std::string& what,
                   const std::string& outcome);
  // Sends every agent a goodbye.
  void Shutdown();

 private:
  // Returns true on a leaf: its root decides what the ranks record.
  bool IsRelayed() const { return core_->options.relay != nullptr; }
  void WelcomeWith(const v1::Hello& hello, RunState* run, AgentSession* agent,
                   v1::Welcome* welcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void OnRankKnown(const std::string& session, const v1::RankKnown& known);
  void Hear(const v1::AgentEvent& event, RunState* run, AgentSession* agent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Emits events of agents that only go to the event log.
  void TellOf(const v1::AgentEvent& event, const AgentSession& agent);
  // Save which processes record, so that a restarted collector expects them,
  // and what a process could not deliver.
  void NoteDumping(Dumping dumping, AgentSession* agent);
  void NoteUndelivered(const v1::Undelivered& said, AgentSession* agent);
  // Report a session's hello and its end to the root.
  void RelayHello(const std::string& session, const v1::Hello& hello,
                  const Peer& peer);
  void RelayGone(const std::string& session, const std::string& reason);

  ControlCore* const core_;
  const Listeners to_;
  bool going_down_ ABSL_GUARDED_BY(kControlLock) = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_AGENT_SESSIONS_H_
