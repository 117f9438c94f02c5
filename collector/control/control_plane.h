// SPDX-License-Identifier: Apache-2.0
// Registry of connected ranks, plans of each run, and switches in progress.
//
// Ownership: one per collector; the registry, the archive and the clock outlive it.
// Threads: thread-safe behind one mutex, under which nothing is compiled and
// nobody waits for a disk: every rank's events and every `status` need it.
// Senders are called with that mutex held: they must only queue. Completion
// callbacks likewise. Plans are saved by a queue, in the order in which they
// were decided on; Admit, SetTriggers and what names a run for the first time
// wait for the disk in the call, with no lock.
// Failure: bad requests are answered with a status and change nothing.
#ifndef RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_
#define RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/auth/audit_log.h"
#include "collector/auth/token_table.h"
#include "collector/control/agent_index.h"
#include "collector/control/audit_budget.h"
#include "collector/control/disk_queue.h"
#include "collector/control/event_log.h"
#include "collector/control/explain.h"
#include "collector/control/new_run_budget.h"
#include "collector/control/plan_table.h"
#include "collector/control/reference_budget.h"
#include "collector/control/run_edits.h"
#include "collector/control/run_plans.h"
#include "collector/control/run_triggers.h"
#include "collector/control/step_pace.h"
#include "collector/control/switch_operation.h"
#include "collector/store/archive_reader.h"
#include "collector/store/run_registry.h"
#include "rankprobe/v1/leaf.pb.h"

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
  // Ends its Session when another connection has taken its place. Only queues;
  // may be null.
  std::function<void(const absl::Status&)> end;
};

class ControlPlane {
 public:
  using Sender = std::function<void(const v1::Directive&)>;
  struct Options {
    size_t max_sessions = 4096;
    // Runs without a connected rank that are held in memory; of more, those that
    // were longest not spoken of are forgotten, and read again when they are.
    size_t max_idle_runs = 1024;
    // Principals that share them: each may hold its part and no more.
    size_t agents = 1;
    // Runs that one principal may begin at once (NewRunBudget).
    size_t new_runs = 1024;
    uint64_t credit_bytes = 16 << 20;
    // Where events go; outlives the control plane. Null: nowhere.
    EventLog* events = nullptr;
    // For runs that were given no triggers of their own.
    std::optional<v1::TriggerSpec> default_triggers;
    // A disk that takes longer to sync what it has written is not waited for.
    absl::Duration sync_wait = absl::Seconds(1);
    // Ranks may come from another collector, with plans that were agreed on there:
    // steps under a plan that was not sent from here are not checked against it.
    bool one_of_several = false;
    // Of a leaf with a root, which controls its ranks: takes what they say. Only
    // queues. Null: they are controlled here.
    std::function<void(v1::RelayedEvent)> relay;
    // Plans are saved on a thread of their own; else in the calls that asked
    // for it, after the lock.
    bool own_thread = false;
  };
  struct Admission {
    // Its session id is a secret: whoever knows it may upload in its name.
    v1::Welcome welcome;
    v1::Identity identity;
    // The session this one takes the place of (a reconnect); empty if none.
    std::string replaced_session;
  };

  // `registry` null: nobody is admitted and nothing can be switched.
  ControlPlane(const Options& options, RunRegistry* registry,
               ArchiveReader* archive, const Clock* clock);

  // INVALID_ARGUMENT, FAILED_PRECONDITION (protocol), RESOURCE_EXHAUSTED (too
  // many sessions, or new runs),
  // ALREADY_EXISTS (another live process has this rank; both are named),
  // PERMISSION_DENIED (the token's run or ranks, or another's incarnation).
  absl::StatusOr<Admission> Admit(const v1::Hello& hello, Sender sender,
                                  Peer peer = {});
  void OnEvent(const std::string& session, const v1::AgentEvent& event);
  void Disconnected(const std::string& session, const std::string& reason);

  // To a rank whose words are relayed; nothing if it has gone.
  void Say(const std::string& session, const v1::Directive& directive);

  // The session behind an id, if it is the principal's own; NOT_FOUND.
  struct SessionInfo {
    v1::Identity identity;
    // As IncarnationRow has it.
    std::string principal;
  };
  absl::StatusOr<SessionInfo> Find(const std::string& session,
                                   const Principal& principal) const;
  // The ingest gate: may this process record this step under this epoch?
  bool Admits(const v1::Identity& identity, int64_t step, uint64_t epoch) const;
  // The plan behind an epoch of this process; null when it is not known (any more),
  // or another collector's.
  std::shared_ptr<const CompiledPlan> PlanOf(const v1::Identity& identity,
                                             uint64_t epoch) const;
  void NoteReceived(const std::string& session, uint64_t bytes,
                    int64_t pending_delta);

  using SwitchDone = SwitchOperation::Done;
  // `who` names the operator in the plan.
  void SetDumpEnable(const v1::SetDumpEnableRequest& request, SwitchDone done,
                     const std::string& who = "");
  void SetConfig(const v1::SetConfigRequest& request, SwitchDone done,
                 const std::string& who = "");
  absl::StatusOr<v1::GetConfigResponse> GetConfig(const std::string& run);
  v1::ListAgentsResponse ListAgents(const std::string& run) const;
  // An event of each run that has a connected rank; where there is none, of no run.
  void TellAllRuns(v1::Event::Kind kind, const std::string& what,
                   const std::string& outcome);

  // Ranks it was sent to.
  absl::StatusOr<uint64_t> SetTriggers(const v1::SetTriggersRequest& request);
  absl::StatusOr<v1::TriggerSpec> GetTriggers(const std::string& run);
  absl::StatusOr<uint64_t> ShipFlight(const v1::ShipFlightRequest& request);
  v1::ListEventsResponse ListEvents(const v1::ListEventsRequest& request) const;
  // Asks the ranks for their last calls; answers within a few seconds.
  using ExplainDone = std::function<void(absl::StatusOr<v1::ExplainResponse>)>;
  void Explain(const v1::ExplainRequest& request, ExplainDone done);

  // Advances deadlines; call it every few tens of milliseconds.
  void Tick();
  // What agents did that belongs into the audit log, since the last call.
  std::vector<AuditRecord> TakeAudit();
  // Such records for which there was no room: more than the principal may
  // cause, or nobody took them.
  uint64_t CountDroppedAudit() const;
  // Tells every agent goodbye.
  void Shutdown();
  // Held in memory.
  size_t CountRuns() const;
  // Returns when what was decided before is saved.
  void WaitForSaves() { saves_.Wait(); }

 private:
  // Whose process it is, for a root.
  void RelayHello(const std::string& session, const v1::Hello& hello,
                  const Peer& peer);
  void RelayGone(const std::string& session, const std::string& reason);
  // What the store is to be told: the newest of it, once.
  struct DumpingNote {
    std::atomic<Dumping> dumping{Dumping::kNo};
    std::atomic<bool> queued{false};
  };
  struct Agent {
    v1::Identity identity;
    Sender sender;
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
  };
  using Agents = std::map<std::string, Agent>;
  // Whom the word of a process reaches: the ranks of its token, where that is
  // bound to ranks and others are there too; else all.
  struct Reach {
    bool all = true;
    // Those that are connected, unless it is all.
    std::vector<int64_t> ranks;
    // Of the token; empty: all.
    std::string domain;
  };
  struct ExplainOperation {
    uint64_t id = 0;
    v1::ExplainRequest request;
    std::shared_ptr<const CompiledPlan> hypothetical;
    ExplainDone done;
    absl::Time deadline;
    // Incarnations that have not answered, and what the others said.
    std::set<uint64_t> waiting;
    std::map<uint64_t, v1::CallReport> reports;
  };
  struct Run {
    std::string name;
    absl::Time last_used = absl::InfinitePast();
    // It has a row in the store.
    bool stored = false;
    RunTriggers triggers;
    RunPlans plans;
    RunEdits edits;
    std::list<std::shared_ptr<SwitchOperation>> switches;
    ReferenceBudget reference;
  };

  // Brings a run that is not known yet from the store. First thing in every
  // call that names a run: LoadRun only looks in memory. UNAVAILABLE when the
  // store cannot be read: the run is then not known, and the call is over.
  absl::Status ReadRun(const std::string& run);
  Run* LoadRun(const std::string& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Anybody can name runs that are none.
  void ForgetIdleRuns(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the store has of a run.
  struct SavedRun {
    std::shared_ptr<const CompiledPlan> plan;
    // The state of the config file that it was made of.
    std::string file_key;
    std::optional<v1::TriggerSpec> triggers;
    // Of the saved plan, also when it cannot be used.
    uint64_t epoch = 0;
    // What is saved and cannot be used.
    std::vector<std::string> faults;
  };
  void UseSaved(const SavedRun& saved, Run* run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<SavedRun> ReadSaved(const std::string& run) const;
  // The store does not have it.
  bool IsNewRun(const std::string& run);
  // The plan of a run that has none becomes the one this agent brings.
  absl::Status AdoptPlanOf(const v1::Hello& hello, const Peer& peer);
  // A plan of one rank that was saved for it; null: none.
  absl::StatusOr<std::shared_ptr<const CompiledPlan>> ReadOwnPlan(
      const v1::Identity& identity);
  // Something of the run that is saved cannot be used.
  void TellFault(const std::string& run, const std::string& fault);
  // The next one.
  Agents::iterator Forget(Agents::iterator agent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteDisconnected(Agent* agent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRankFree(const v1::Identity& identity,
                             const std::string& self) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets those that are gone when there is no room otherwise.
  absl::Status CheckRoom(const v1::Identity& identity, const Peer& peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its session goes: this connection is the same process, and has proved it.
  absl::Status TakeOver(const OpenedIncarnation& opened, Admission* admission)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRankKnown(const std::string& session, const v1::RankKnown& known);
  // What is known of other starts of what this process is of its run: of rank 0,
  // or of processes without a rank. Waits for the disk.
  std::vector<v1::IncarnationRow> ReadOthers(
      const v1::Identity& identity) const;
  // The one to tell of: connected, or the last one that ended in good order and
  // left records.
  std::optional<v1::OtherProcess> NewestOf(
      const std::vector<v1::IncarnationRow>& others) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // "process 12 on HOST", for a person.
  static std::string Describe(const v1::Identity& identity);
  // Notes that an agent changed what its run records, or would have.
  static AuditRecord AuditOf(const Peer& peer, absl::string_view action,
                             const std::string& run, const v1::PlanSpec& spec,
                             absl::string_view detail);
  void Audit(AuditRecord record, absl::string_view outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Switch(const std::string& run, v1::PlanSpec spec,
              std::shared_ptr<const Plan> config, uint64_t expected_epoch,
              const v1::SwitchOptions& options, SwitchDone done,
              std::optional<int64_t> until = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a config.json that takes the place of the run's: whether dumping is on
  // under it, and until when.
  struct Switched {
    bool on = false;
    std::optional<int64_t> until;
  };
  Switched SwitchedBy(const Run& run, const Plan& config) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnConfigEdited(const std::string& session,
                      const v1::ConfigEdited& untrusted);
  // Connected processes of its run that have another token than `speaker`, if
  // that is bound to ranks. With `same_file`, without those that read the same
  // in their config file.
  std::vector<const Agent*> OthersThan(const Agent& speaker,
                                       bool same_file) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Reach ReachOf(const Agent& speaker) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::string DomainOf(const Principal& principal);
  // Whether the edit may be the run's; else it is set aside until the others
  // have read the same, and that is told.
  bool IsOfAll(const Agent& speaker, Run* run, FileEdit* edit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeEdit(const Agent& speaker, Run* run, FileEdit edit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Somebody that an edit waited for has gone.
  void TryEditSetAside(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To one rank; notes what it has heard of.
  void SendTo(Agent* agent, const v1::Directive& directive)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteSent(const v1::Identity& identity, uint64_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The process has its plan of this epoch from elsewhere.
  bool IsForeign(const v1::Identity& identity, uint64_t epoch) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Begins to make the edit that waits the plan of the run, if it may.
  void TryEdit(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EditDone(const std::string& run, FileEdit edit,
                const absl::StatusOr<v1::SwitchResult>& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What became of an edit, with the plan that decided.
  void NoteEdit(const Run& run, const FileEdit& edit, const v1::PlanSpec& plan,
                const std::string& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A file cannot be used: what is being agreed on, if it is no operator's, must
  // not switch dumping on after that was told.
  void KeepOff(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Somebody has spoken later.
  void CallOffFileSwitches(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the connected ranks whose step can be believed; -1: none has begun.
  int64_t FurthestStep(const std::string& run) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Saves what is in force then, for the run or for `ranks`.
  void TakeBack(const std::string& run, const std::vector<int64_t>& ranks);
  SwitchOperation::Actions ActionsFor(const std::string& run,
                                      const std::vector<int64_t>& ranks,
                                      const std::vector<std::string>& sessions);
  // Brings a rank that did not follow a switch the plan in force for it.
  void Converge(const std::string& session, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPrepared(const std::string& session, Run* run,
                  const v1::PlanPrepared& prepared)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Holds what it says it follows against the run's plan of that epoch.
  void NotePlan(uint64_t epoch, const std::string& digest, Run* run,
                Agent* agent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnApplied(const std::string& session, Agent* agent, Run* run,
                 const v1::PlanApplied& applied)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // PlanSpec::from_first_step: now it is known.
  void FixFirstStep(const std::string& run_name, Run* run,
                    const v1::PlanApplied& applied)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Agree(const std::string& run, const std::vector<int64_t>& ranks,
             const std::vector<std::string>& sessions,
             const std::shared_ptr<const CompiledPlan>& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The plan (null: none) is the agent's from a step on that has not come, and
  // does then what the agent does not do now.
  static bool SwitchIsAhead(const Agent& agent, const CompiledPlan* plan);
  static bool IsChosen(const Agent& agent, const std::string& run,
                       const std::vector<int64_t>& ranks);
  static absl::Status CheckRunName(const std::string& run);
  static v1::Event EventOf(v1::Event::Kind kind, const Agent& agent);
  uint64_t EmitEvent(v1::Event event);
  void SendToRun(const std::string& run, const v1::Directive& directive)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t SendTo(const Reach& reach, const std::string& run,
                  const v1::Directive& directive)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t CountConnected(const std::string& run) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // So that a collector that is started again knows who was to come back.
  void NoteDumping(Dumping dumping, Agent* agent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its plan, if that is the one it follows, names a step from here on.
  static bool MayRecordFrom(const Run& run, const Agent& agent);
  void NoteUndelivered(const v1::Undelivered& said, Agent* agent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTriggerEvent(Agent* agent, Run* run, const v1::AgentEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExecuteRule(Run* run, const RunTriggers::Fired& fired,
                   const Reach& reach) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDifference(const Agent& agent, Run* run,
                    const v1::ReferenceDifference& untrusted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Switches plans off whose diff_nums is reached, as soon as nothing else is
  // being switched.
  void EndSpentPlans(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool DumpingNow(const Run& run) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::string OperatorConfig(const Run& run);
  void NoteRunBytes(const v1::Identity& identity, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For deadlines and ages only: a jump of the wall clock moves none of them.
  absl::Time MonotonicNow() const {
    return absl::FromUnixNanos(clock_->MonotonicNanos());
  }
  void CheckSilence(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool Asked(const v1::ExplainRequest& request, const Agent& agent);
  void FinishExplains() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::ExplainResponse Answer(const ExplainOperation& op)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetFinished(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  // Null: the archive is read-only, so there are no ranks and no plans.
  RunRegistry* const registry_;
  ArchiveReader* const archive_;
  const Clock* const clock_;
  // Held while a run's first plan is adopted, until it is saved; never waited
  // for with mutex_ held.
  absl::Mutex adopt_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  uint64_t next_explain_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Time next_silence_check_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_idle_check_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::list<std::unique_ptr<ExplainOperation>> explains_
      ABSL_GUARDED_BY(mutex_);
  Agents agents_ ABSL_GUARDED_BY(mutex_);
  AgentIndex index_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_forgetting_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Of one of several: epochs that were sent from here, by incarnation.
  std::map<uint64_t, std::set<uint64_t>> sent_plans_ ABSL_GUARDED_BY(mutex_);
  bool going_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
  NewRunBudget new_runs_ ABSL_GUARDED_BY(mutex_);
  AuditBudget audit_budget_ ABSL_GUARDED_BY(mutex_);
  std::vector<AuditRecord> audit_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_audit_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable PlanTable plans_;
  // The last member: what it still has to do needs the others.
  mutable DiskQueue saves_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_
