// SPDX-License-Identifier: Apache-2.0
// A run whose ranks are in the test's memory and hold plans as agents do.
//
// Not thread-safe: a test's thread.
#ifndef RANKPROBE_COLLECTOR_TESTING_SWITCH_FIXTURE_H_
#define RANKPROBE_COLLECTOR_TESTING_SWITCH_FIXTURE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collector/testing/control_fixture.h"
#include "collector/testing/frames.h"

namespace rankprobe::testing {

inline constexpr char kFakeConfig[] =
    R"({"dump_path": "d", "dump_enable": false})";

inline v1::Hello HelloOf(const std::string& run, int64_t rank,
                         uint64_t incarnation) {
  v1::Hello hello;
  *hello.mutable_identity() = MakeIdentity(run, rank, incarnation);
  hello.set_protocol(1);
  hello.set_incarnation_secret(std::string(32, 's'));
  hello.set_config_json(kFakeConfig);
  hello.set_step(-1);
  return hello;
}

// The peer of a rank's stream, which holds plans as agents do.
struct FakeRank {
  std::string session;
  int64_t step = 0;
  std::optional<v1::PlanSpec> prepared;
  bool committed = false;
  uint64_t epoch = 0;
  int64_t applied_at = -1;
  std::deque<v1::Directive> inbox;
};

// Ranks of run "run" that handle their messages when the test says so.
class SwitchFixture : public ControlFixture {
 protected:
  v1::Welcome Join(int64_t rank, FakeRank* fake, uint64_t incarnation = 0) {
    auto admission = control_->agents().Admit(
        HelloOf("run", rank, incarnation == 0 ? 100 + rank : incarnation),
        [fake](const v1::Directive& d) { fake->inbox.push_back(d); });
    EXPECT_TRUE(admission.ok()) << admission.status();
    fake->session = admission->welcome.session_id();
    return admission->welcome;
  }

  void BeginStep(FakeRank* rank, int64_t step) {
    rank->step = step;
    v1::AgentEvent event;
    event.mutable_progress()->set_step(step);
    event.mutable_progress()->set_last_step_ns(100000000);
    control_->agents().OnEvent(rank->session, event);
    if (rank->committed && step >= rank->prepared->effective_at_step()) {
      rank->epoch = rank->prepared->epoch();
      rank->applied_at = step;
      v1::AgentEvent applied;
      applied.mutable_applied()->set_epoch(rank->epoch);
      applied.mutable_applied()->set_step(step);
      rank->prepared.reset();
      rank->committed = false;
      control_->agents().OnEvent(rank->session, applied);
    }
  }

  // Takes one message from the rank's inbox and handles it like PlanSwitcher.
  void Deliver(FakeRank* rank) {
    if (rank->inbox.empty()) return;
    const v1::Directive d = rank->inbox.front();
    rank->inbox.pop_front();
    v1::AgentEvent event;
    v1::PlanPrepared* answer = event.mutable_prepared();
    answer->set_current_step(rank->step);
    if (d.has_prepare()) {
      answer->set_epoch(d.prepare().plan().epoch());
      answer->set_accepted(d.prepare().plan().effective_at_step() > rank->step);
      if (answer->accepted()) {
        rank->prepared = d.prepare().plan();
        rank->committed = false;
      }
    } else if (d.has_commit()) {
      answer->set_epoch(d.commit().epoch());
      const bool held = rank->prepared.has_value() &&
                        rank->prepared->epoch() == d.commit().epoch();
      if (held && rank->prepared->effective_at_step() > rank->step) {
        rank->committed = true;
        return;
      }
      answer->set_reason("late");
    } else if (d.has_adopt()) {
      rank->prepared = d.adopt().plan();
      rank->committed = true;
      return;
    } else {
      if (d.has_abort() && rank->prepared.has_value() &&
          rank->prepared->epoch() == d.abort().epoch()) {
        rank->prepared.reset();
      }
      return;
    }
    control_->agents().OnEvent(rank->session, event);
  }

  void Enable(v1::SwitchOptions options = {}, const std::string& config = "",
              uint64_t epoch = 0) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(true);
    request.set_config_json(config);
    request.set_expected_epoch(epoch);
    *request.mutable_options() = options;
    result_.reset();
    control_->plans().SetDumpEnable(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); });
  }

  // Returns what Explain says about a rank that did not follow; empty: nothing.
  std::string ExplainedSwitch(FakeRank* rank) {
    v1::ExplainRequest request;
    request.set_run("run");
    std::string reason;
    control_->explanations().Explain(
        request, [&](absl::StatusOr<v1::ExplainResponse> r) {
          for (const v1::RankExplanation& told : r->ranks()) {
            for (const v1::Explanation& stage : told.stages()) {
              if (stage.stage() == "switch") reason = stage.reason();
            }
          }
        });
    clock_.Advance(absl::Seconds(3));
    control_->Tick();
    // The rank was asked for its calls and does not answer.
    if (!rank->inbox.empty() && rank->inbox.back().has_report_calls())
      rank->inbox.pop_back();
    return reason;
  }

  // Returns the events of single ranks in a switch.
  std::vector<std::string> SwitchEvents() {
    std::vector<std::string> details;
    const v1::ListEventsResponse events = control_->ListEvents({});
    for (const v1::Event& event : events.events()) {
      if (event.kind() == v1::Event::KIND_SWITCHED && event.has_identity())
        details.push_back(event.detail());
    }
    return details;
  }

  std::optional<absl::StatusOr<v1::SwitchResult>> result_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_SWITCH_FIXTURE_H_
