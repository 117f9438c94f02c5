// SPDX-License-Identifier: Apache-2.0
// Ranks in the test's memory that follow the plans of run "run" as agents do,
// and whose config files are edited.
//
// Not thread-safe: a test's thread.
#ifndef RANKPROBE_COLLECTOR_TESTING_EDITS_FIXTURE_H_
#define RANKPROBE_COLLECTOR_TESTING_EDITS_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "collector/testing/control_fixture.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

inline constexpr char kOff[] = R"({"dump_path": "d", "dump_enable": false})";
inline constexpr char kOn[] = R"({"dump_path": "d", "dump_enable": true})";
inline constexpr char kTensor[] =
    R"({"dump_path": "d", "dump_enable": true, "task": "tensor"})";

// A simplified PlanSwitcher: what a rank does with directives.
struct FollowingRank {
  std::string session;
  int64_t step = 0;
  bool silent = false;
  uint64_t heard_epoch = 0;
  std::deque<v1::Directive> inbox;
  std::optional<v1::PlanSpec> prepared;
  // Committed plans that wait for their steps, by epoch.
  std::vector<v1::PlanSpec> agreed;
  v1::PlanSpec in_force;
};

class EditsFixture : public ControlFixture {
 protected:
  void Join(int64_t rank, FollowingRank* fake, const std::string& config = kOff,
            Peer peer = {}) {
    v1::Hello hello;
    *hello.mutable_identity() =
        MakeIdentity("run", rank, 100 + static_cast<uint64_t>(rank));
    hello.set_protocol(1);
    hello.set_incarnation_secret(std::string(32, 's'));
    hello.set_config_json(config);
    hello.set_config_path("/work/config.json");
    hello.set_step(-1);
    auto admission = control_->agents().Admit(
        hello, [fake](const v1::Directive& d) { fake->inbox.push_back(d); },
        std::move(peer));
    ASSERT_TRUE(admission.ok()) << admission.status();
    fake->session = admission->welcome.session_id();
    fake->in_force = admission->welcome.plan();
    fake->heard_epoch = fake->in_force.epoch();
  }

  void Edit(const FollowingRank& rank, const std::string& config,
            const std::string& fault = "",
            std::optional<uint64_t> seen = std::nullopt) {
    v1::AgentEvent event;
    v1::ConfigEdited& edited = *event.mutable_config_edited();
    edited.set_config_json(config);
    edited.set_fault(fault);
    edited.set_path("/work/config.json");
    edited.set_step(rank.step);
    edited.set_seen_epoch(seen.value_or(rank.heard_epoch));
    control_->agents().OnEvent(rank.session, event);
  }

  void Answer(FollowingRank* rank) {
    if (rank->silent) return;
    while (!rank->inbox.empty()) {
      const v1::Directive d = rank->inbox.front();
      rank->inbox.pop_front();
      if (d.has_prepare()) {
        rank->prepared = d.prepare().plan();
        rank->heard_epoch = rank->prepared->epoch();
        v1::AgentEvent event;
        event.mutable_prepared()->set_epoch(rank->prepared->epoch());
        event.mutable_prepared()->set_current_step(rank->step);
        event.mutable_prepared()->set_accepted(
            rank->prepared->effective_at_step() > rank->step);
        control_->agents().OnEvent(rank->session, event);
      } else if (d.has_commit()) {
        if (rank->prepared.has_value() &&
            rank->prepared->epoch() == d.commit().epoch())
          rank->agreed.push_back(*std::exchange(rank->prepared, std::nullopt));
      } else if (d.has_abort()) {
        if (rank->prepared.has_value() &&
            rank->prepared->epoch() == d.abort().epoch())
          rank->prepared.reset();
      }
    }
  }

  void Step(FollowingRank* rank) {
    ++rank->step;
    v1::AgentEvent event;
    event.mutable_progress()->set_step(rank->step);
    event.mutable_progress()->set_last_step_ns(100000000);
    control_->agents().OnEvent(rank->session, event);
    const auto due = std::find_if(
        rank->agreed.rbegin(), rank->agreed.rend(), [&](const auto& plan) {
          return rank->step >= plan.effective_at_step();
        });
    if (due == rank->agreed.rend()) return;
    // Older plans are replaced.
    rank->in_force = *due;
    rank->agreed.erase(rank->agreed.begin(), due.base());
    v1::AgentEvent applied;
    applied.mutable_applied()->set_epoch(rank->in_force.epoch());
    applied.mutable_applied()->set_step(rank->step);
    control_->agents().OnEvent(rank->session, applied);
  }

  // Advances all ranks by a few steps, with time for the ticker.
  void Run(const std::vector<FollowingRank*>& ranks, int steps = 6) {
    for (int i = 0; i < steps; ++i) {
      for (FollowingRank* rank : ranks) Answer(rank);
      for (FollowingRank* rank : ranks) Step(rank);
      clock_.Advance(absl::Milliseconds(500));
      control_->Tick();
    }
  }

  void Operator(bool on) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(on);
    control_->plans().SetDumpEnable(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); },
        "anna");
  }

  v1::GetConfigResponse Config() { return *control_->plans().GetConfig("run"); }
  std::vector<std::string> Outcomes() {
    v1::ListEventsRequest request;
    request.set_run("run");
    std::vector<std::string> out;
    const v1::ListEventsResponse listed = control_->ListEvents(request);
    for (const v1::Event& event : listed.events()) {
      if (event.kind() == v1::Event::KIND_SWITCHED)
        out.push_back(absl::StrCat(event.detail(), ": ", event.outcome()));
    }
    return out;
  }

  // Returns the records of edits since the last call.
  std::vector<std::string> Audited() {
    std::vector<std::string> out;
    for (const AuditRecord& record : control_->audit().Take()) {
      if (record.action == "ConfigEdited")
        out.push_back(absl::StrCat(record.detail, ": ", record.outcome));
    }
    return out;
  }

  std::optional<absl::StatusOr<v1::SwitchResult>> result_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_EDITS_FIXTURE_H_
