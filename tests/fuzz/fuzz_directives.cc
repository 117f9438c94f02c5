// SPDX-License-Identifier: Apache-2.0
// Every directive a collector can send, and steps between them, against the
// agent's plan gate and watcher.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "agent/runtime/session/plan_switcher.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "tests/fuzz/pieces.h"

namespace rankprobe {
namespace {

class Play {
 public:
  Play() : watcher_(&clock_, [](const v1::AgentEvent&) {}) {}

  void Piece(uint8_t kind, const std::string& bytes) {
    if (kind % 4 == 0) {
      v1::Directive directive;
      if (directive.ParseFromString(bytes)) Take(directive);
    } else if (kind % 4 == 1) {
      std::optional<v1::PlanApplied> applied;
      gate_.BeginStep(++step_, &applied);
      watcher_.BeginStep(step_);
    } else if (kind % 4 == 2) {
      Record(bytes);
    } else {
      clock_.Advance(absl::Seconds(1));
      watcher_.EndStep();
    }
  }

 private:
  void Take(const v1::Directive& d) {
    gate_.Prepare(d.prepare().plan());
    gate_.Commit(d.commit().epoch());
    gate_.Abort(d.abort().epoch());
    if (d.has_welcome()) {
      gate_.Adopt(d.welcome().plan());
      watcher_.Configure(d.welcome().triggers());
      watcher_.SetRunLevel(d.welcome().degrade());
    }
    if (d.has_triggers()) watcher_.Configure(d.triggers());
    if (d.has_degrade()) watcher_.SetRunLevel(d.degrade().level());
    if (d.has_ship_flight()) watcher_.FlagRequest(d.ship_flight().request());
    if (d.has_report_calls()) watcher_.ReportCalls(d.report_calls().id());
    watcher_.TakeRequestedFlight();
  }

  void Record(const std::string& bytes) {
    v1::CallPhase phase;
    if (!phase.ParseFromString(bytes)) return;
    watcher_.OnCall(v1::CallTrace::KIND_API, phase.entry());
    watcher_.OnPhase(phase);
    watcher_.OnLoss(static_cast<double>(bytes.size()));
    watcher_.AddCost(bytes.size(), 1000);
    if (watcher_.FlightPlan() != nullptr) {
      auto buffer = std::make_unique<RecordBuffer>();
      buffer->batch()->set_step(step_);
      *buffer->Add()->mutable_call() = phase;
      watcher_.KeepFlight(std::move(buffer));
    }
  }

  ManualClock clock_;
  PlanSwitcher gate_;
  TriggerWatcher watcher_;
  int64_t step_ = -1;
};

}  // namespace
}  // namespace rankprobe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::Play play;
  rankprobe::ForEachPiece(data, size,
                          [&play](uint8_t kind, const std::string& bytes) {
                            play.Piece(kind, bytes);
                          });
  return 0;
}
