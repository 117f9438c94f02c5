// Who is connected, what each run records, and the switches in progress.
//
// Ownership: one per collector; the Store and the Clock outlive it.
// Threads: thread-safe behind one mutex. Senders are called with that mutex
// held: they must only queue. Completion callbacks likewise.
// Failure: bad requests are answered with a status and change nothing.
#ifndef RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_
#define RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/control/run_plans.h"
#include "collector/control/switch_operation.h"
#include "collector/store/store.h"

namespace rankprobe {

class ControlPlane {
 public:
  using Sender = std::function<void(const v1::Directive&)>;
  struct Options {
    size_t max_sessions = 4096;
    std::string version = "0.1.0";
    uint64_t credit_bytes = 16 << 20;
  };
  struct Admission {
    v1::Welcome welcome;
    v1::Identity identity;
    // The session this one takes the place of (a reconnect); empty if none.
    std::string replaced_session;
  };

  ControlPlane(const Options& options, Store* store, const Clock* clock);

  // INVALID_ARGUMENT, FAILED_PRECONDITION (protocol), RESOURCE_EXHAUSTED,
  // ALREADY_EXISTS (another live process has this rank; both are named).
  absl::StatusOr<Admission> Admit(const v1::Hello& hello, Sender sender);
  void OnEvent(const std::string& session, const v1::AgentEvent& event);
  void Disconnected(const std::string& session, const std::string& reason);

  // The identity behind a session id; NOT_FOUND.
  absl::StatusOr<v1::Identity> Find(const std::string& session) const;
  // The ingest gate: may this process record this step under this epoch?
  bool Admits(const v1::Identity& identity, int64_t step, uint64_t epoch) const;
  void NoteReceived(const std::string& session, uint64_t bytes,
                    int64_t pending_delta);

  using SwitchDone = SwitchOperation::Done;
  void SetDumpEnable(const v1::SetDumpEnableRequest& request, SwitchDone done);
  void SetConfig(const v1::SetConfigRequest& request, SwitchDone done);
  absl::StatusOr<v1::GetConfigResponse> GetConfig(const std::string& run);
  v1::ListAgentsResponse ListAgents(const std::string& run) const;

  // Advances deadlines; call it every few tens of milliseconds.
  void Tick();
  // Tells every agent goodbye.
  void Shutdown();

 private:
  struct Agent {
    v1::Identity identity;
    Sender sender;
    bool connected = true;
    int64_t step = -1;
    int64_t step_ns = 0;
    uint64_t epoch = 0;
    bool dumping = false;
    uint64_t received_bytes = 0;
    int64_t pending_bytes = 0;
    uint64_t lost_records = 0;
    uint64_t lost_payloads = 0;
    std::string framework_version;
    absl::Time last_heard;
  };
  struct Run {
    RunPlans plans;
    std::list<std::unique_ptr<SwitchOperation>> switches;
  };

  Run* LoadRun(const std::string& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRankFree(const v1::Identity& identity,
                             const std::string& self) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Switch(const std::string& run, v1::PlanSpec spec,
              uint64_t expected_epoch, const v1::SwitchOptions& options,
              SwitchDone done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SavePlan(const std::string& run, const v1::PlanSpec& spec,
                        const std::vector<int64_t>& ranks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetFinished(Run* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Store* const store_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  uint64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Agent> agents_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_
