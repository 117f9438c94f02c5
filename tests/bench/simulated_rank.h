// SPDX-License-Identifier: Apache-2.0
// The agent's half of a switch, without a session, for load programs of many ranks:
// what a rank answers to a directive and says of a step, as CollectorLink and Session
// do. Thread-safe as PlanSwitcher is; steps of one thread. Never fails.
#ifndef RANKPROBE_TESTS_BENCH_SIMULATED_RANK_H_
#define RANKPROBE_TESTS_BENCH_SIMULATED_RANK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/runtime/session/plan_switcher.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class SimulatedRank {
 public:
  static v1::Hello HelloOf(const std::string& run, size_t rank, size_t world) {
    v1::Hello hello;
    hello.set_protocol(1);
    hello.set_step(-1);
    hello.set_config_json(
        R"({"task": "statistics", "dump_path": "./dump", "rank": [],
            "step": [], "level": "L1", "dump_enable": false,
            "statistics": {}})");
    hello.set_incarnation_secret(std::string(32, 's'));
    v1::Identity& identity = *hello.mutable_identity();
    identity.set_run(run);
    identity.set_rank(static_cast<int64_t>(rank));
    identity.set_world_size(static_cast<int64_t>(world));
    identity.set_pid(static_cast<int32_t>(100000 + rank));
    identity.set_host(absl::StrCat("node", rank / 8));
    identity.set_incarnation(rank + 1);
    return hello;
  }

  // Absent: nothing is to be said to it.
  std::optional<v1::AgentEvent> Answer(const v1::Directive& directive) {
    v1::AgentEvent event;
    switch (directive.directive_case()) {
      case v1::Directive::kWelcome:
        if (directive.welcome().has_plan())
          switcher_.Adopt(directive.welcome().plan());
        return std::nullopt;
      case v1::Directive::kPrepare:
        *event.mutable_prepared() =
            switcher_.Prepare(directive.prepare().plan());
        return event;
      case v1::Directive::kCommit: {
        auto late = switcher_.Commit(directive.commit().epoch());
        if (!late.has_value()) return std::nullopt;
        *event.mutable_prepared() = *std::move(late);
        return event;
      }
      case v1::Directive::kAbort:
        switcher_.Abort(directive.abort().epoch());
        return std::nullopt;
      case v1::Directive::kAdopt:
        switcher_.Adopt(directive.adopt().plan());
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }

  // What it says when it begins the step.
  std::vector<v1::AgentEvent> BeginStep(int64_t step, int64_t now_ns) {
    std::vector<v1::AgentEvent> events;
    std::optional<v1::PlanApplied> applied;
    const ActivePlan active = switcher_.BeginStep(step, &applied);
    if (applied.has_value())
      *events.emplace_back().mutable_applied() = *std::move(applied);
    v1::StepProgress& progress = *events.emplace_back().mutable_progress();
    progress.set_step(step);
    progress.set_dumping(active.enabled && active.plan != nullptr);
    if (began_ns_ > 0) progress.set_last_step_ns(now_ns - began_ns_);
    began_ns_ = now_ns;
    return events;
  }

 private:
  PlanSwitcher switcher_;
  int64_t began_ns_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_TESTS_BENCH_SIMULATED_RANK_H_
