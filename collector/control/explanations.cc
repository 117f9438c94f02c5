// SPDX-License-Identifier: Apache-2.0
#include "collector/control/explanations.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/control/explain.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr uint32_t kMaxExplainedCalls = 20000;
constexpr int kMaxReportedCalls = 20000;

std::vector<int64_t> KnownRanks(ControlCore* core, const std::string& run) {
  core->AssertHeld();
  std::vector<int64_t> ranks;
  for (const auto& [session, agent] : core->sessions.all()) {
    if (agent.identity.run() == run && agent.identity.has_rank())
      ranks.push_back(agent.identity.rank());
  }
  return ranks;
}

// The processes that a request selects. Rank 0 of a run without ranks means all
// of its processes, as in a dump.
class Asked {
 public:
  // `request` outlives the object.
  Asked(ControlCore* core, const v1::ExplainRequest& request)
      : request_(request),
        is_any_(
            !request.has_rank() ||
            (request.rank() == 0 && KnownRanks(core, request.run()).empty())) {}
  bool Contains(const v1::Identity& process) const {
    return process.run() == request_.run() &&
           (is_any_ ||
            (process.has_rank() && process.rank() == request_.rank()));
  }

 private:
  const v1::ExplainRequest& request_;
  const bool is_any_;
};

// Returns a text such as "; known ranks of the run: 0-1".
std::string KnownRanksText(ControlCore* core, const std::string& run) {
  core->AssertHeld();
  const std::vector<int64_t> ranks = KnownRanks(core, run);
  if (!ranks.empty())
    return absl::StrCat("; known ranks of the run: ", IntSet(ranks).Text());
  for (const auto& [session, agent] : core->sessions.all()) {
    if (agent.identity.run() == run)
      return "; the processes of the run have no rank: leave out --rank";
  }
  return "; no rank of the run is known";
}

}  // namespace

void Explanations::Explain(const v1::ExplainRequest& request, Done done) {
  std::shared_ptr<const CompiledPlan> hypothetical;
  if (!request.config_json().empty()) {
    v1::PlanSpec spec;
    spec.set_config_json(request.config_json());
    spec.set_enabled(true);
    auto compiled = RunPlans::Compile(spec);
    if (!compiled.ok()) return done(compiled.status());
    hypothetical = *std::move(compiled);
  }
  if (const absl::Status status = saved_->Read(request.run()); !status.ok())
    return done(status);
  const ControlLock lock(core_);
  Operation& op = operations_.emplace_back();
  op.id = next_id_++;
  op.request = request;
  op.hypothetical = std::move(hypothetical);
  op.done = std::move(done);
  op.deadline = core_->Now() + kTimeout;
  v1::Directive directive;
  directive.mutable_report_calls()->set_id(op.id);
  const Asked asked(core_, request);
  for (const AgentSession* agent : core_->sessions.ConnectedOf(request.run())) {
    if (!asked.Contains(agent->identity)) continue;
    op.waiting.insert(agent->identity.incarnation());
    agent->sender(directive);
  }
  Finish();
}

void Explanations::OnCalls(const v1::Identity& identity,
                           const v1::CallReport& report) {
  for (Operation& op : operations_) {
    if (op.id == report.id() && op.waiting.erase(identity.incarnation()) > 0 &&
        report.calls().items_size() <= kMaxReportedCalls)
      op.reports[identity.incarnation()] = report;
  }
  Finish();
}

void Explanations::OnLost(const v1::Identity& identity) {
  for (Operation& op : operations_) op.waiting.erase(identity.incarnation());
}

void Explanations::Finish() {
  const absl::Time now = core_->Now();
  for (auto it = operations_.begin(); it != operations_.end();) {
    if (!it->waiting.empty() && now < it->deadline) {
      ++it;
      continue;
    }
    it->done(Answer(*it));
    it = operations_.erase(it);
  }
}

v1::ExplainResponse Explanations::Answer(const Operation& op) {
  v1::ExplainResponse response;
  const RunState* const run = core_->LoadRun(op.request.run());
  if (run->plans.ForAll() != nullptr)
    response.set_epoch(run->plans.ForAll()->spec.epoch());
  ExplainQuestion question;
  question.call = op.request.call();
  if (op.request.has_step()) question.step = op.request.step();
  question.hypothetical = op.hypothetical != nullptr;
  if (op.request.max_calls() > 0)
    question.max_calls = std::min(op.request.max_calls(), kMaxExplainedCalls);
  const absl::Time now = core_->Now();
  const Asked asked(core_, op.request);
  for (const auto& [session, agent] : core_->sessions.all()) {
    if (!asked.Contains(agent.identity)) continue;
    RankFacts facts;
    facts.identity = agent.identity;
    facts.connected = agent.connected;
    facts.step = agent.step;
    facts.silent_ms = absl::ToInt64Milliseconds(now - agent.last_heard);
    facts.degrade = run->triggers.degrade();
    facts.late_epoch = agent.late_epoch;
    facts.late_reason = agent.late_reason;
    const auto report = op.reports.find(agent.identity.incarnation());
    if (report != op.reports.end()) facts.report = report->second;
    const auto in_force = run->plans.ForRank(RankOf(agent.identity));
    if (in_force != nullptr) facts.api_list = in_force->spec.api_list();
    *response.add_ranks() = ExplainRank(
        question, op.hypothetical != nullptr ? op.hypothetical : in_force,
        facts);
  }
  if (response.ranks().empty()) {
    v1::Explanation& stage = *response.add_stages();
    stage.set_stage("connected");
    stage.set_reason(op.request.has_rank()
                         ? absl::StrCat("rank ", op.request.rank(),
                                        " is not connected",
                                        KnownRanksText(core_, op.request.run()))
                         : "no rank of this run is connected");
  }
  std::sort(response.mutable_ranks()->begin(), response.mutable_ranks()->end(),
            [](const v1::RankExplanation& a, const v1::RankExplanation& b) {
              return std::make_pair(a.identity().rank(), a.identity().pid()) <
                     std::make_pair(b.identity().rank(), b.identity().pid());
            });
  return response;
}

}  // namespace rankprobe
