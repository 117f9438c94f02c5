// SPDX-License-Identifier: Apache-2.0
#include "collector/control/ingest_gate.h"

namespace rankprobe {

absl::StatusOr<IngestGate::SessionInfo> IngestGate::Find(
    const std::string& session, const Principal& principal) const {
  const ControlLock lock(core_);
  const AgentSession* const agent = core_->sessions.FindConnected(session);
  if (agent == nullptr || agent->peer.principal != principal)
    return absl::NotFoundError("no such session");
  return SessionInfo{agent->identity, agent->stored_principal};
}

bool IngestGate::Admits(const v1::Identity& identity, int64_t step,
                        uint64_t epoch) const {
  // Epoch 0 is the agent's own plan, in force until it has received the run's.
  if (epoch == 0) return true;
  const ControlLock lock(core_);
  if (core_->sessions.IsForeign(identity, epoch)) return true;
  const RunState* const run = core_->FindRun(identity.run());
  if (run == nullptr) return false;
  const std::shared_ptr<const CompiledPlan> plan = run->plans.ByEpoch(epoch);
  // A forgotten plan admits its records: a rank may have recorded them while
  // the collector was unreachable, and got another plan afterwards.
  if (plan == nullptr) return run->plans.IsForgotten(epoch);
  return plan->Admits(RankOf(identity), step);
}

std::shared_ptr<const CompiledPlan> IngestGate::PlanOf(
    const v1::Identity& identity, uint64_t epoch) const {
  const ControlLock lock(core_);
  const RunState* const run = core_->FindRun(identity.run());
  return run == nullptr || core_->sessions.IsForeign(identity, epoch)
             ? nullptr
             : run->plans.ByEpoch(epoch);
}

void IngestGate::NoteReceived(const std::string& session, uint64_t bytes,
                              int64_t pending_delta) {
  const ControlLock lock(core_);
  AgentSession* const agent = core_->sessions.Find(session);
  if (agent == nullptr) return;
  agent->received_bytes += bytes;
  agent->pending_bytes += pending_delta;
  if (bytes == 0) return;
  agent->last_heard = core_->Now();
  // Bytes of a disconnected rank whose run was dropped from memory are not
  // counted: LoadRun would make a run without its plan.
  RunState* const run = core_->FindRun(agent->identity.run());
  if (run == nullptr) return;
  run->last_used = agent->last_heard;
  triggers_->NoteBytes(run, bytes);
}

}  // namespace rankprobe
