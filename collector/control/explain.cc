// SPDX-License-Identifier: Apache-2.0
#include "collector/control/explain.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/filter/record_filter.h"
#include "common/records/entry_names.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Returns "relu" for "relu", "Functional.relu" and "Functional.relu.0.forward".
absl::string_view FunctionOf(absl::string_view call) {
  std::vector<absl::string_view> parts = absl::StrSplit(call, '.');
  while (parts.size() > 1 &&
         (parts.back() == "forward" || parts.back() == "backward" ||
          absl::c_all_of(parts.back(), absl::ascii_isdigit)))
    parts.pop_back();
  return parts.back();
}

class Explainer {
 public:
  Explainer(const ExplainQuestion& question,
            std::shared_ptr<const CompiledPlan> plan, const RankFacts& facts)
      : question_(question), plan_(std::move(plan)), facts_(facts) {
    *out_.mutable_identity() = facts.identity;
    out_.set_calls_step(-1);
  }

  v1::RankExplanation Explain() {
    Stage("connected", facts_.connected,
          facts_.connected ? absl::StrCat("in step ", facts_.step)
                           : absl::StrCat("the process disconnected ",
                                          facts_.silent_ms / 1000,
                                          " s ago in step ", facts_.step));
    if (plan_ == nullptr) {
      Stage("plan", false,
            "the run has no plan; what the process' own config says holds");
      return std::move(out_);
    }
    Stage("plan", true,
          question_.hypothetical
              ? std::string("the config given, as if it were in force")
              : absl::StrCat("epoch ", plan_->spec.epoch(),
                             plan_->spec.cause().empty()
                                 ? ""
                                 : absl::StrCat(", made by trigger ",
                                                plan_->spec.cause())));
    if (!question_.hypothetical && facts_.late_epoch != 0) {
      Stage("switch", false,
            absl::StrCat("the rank did not follow to epoch ", facts_.late_epoch,
                         " with the others (", facts_.late_reason,
                         "); it gets the plan at its next step"));
    }
    ExplainSwitch();
    ExplainList();
    ExplainFilters();
    ExplainCalls();
    return std::move(out_);
  }

 private:
  void Stage(const char* stage, bool passes, std::string reason) {
    v1::Explanation& e = *out_.add_stages();
    e.set_stage(stage);
    e.set_passes(passes);
    e.set_reason(std::move(reason));
  }

  int64_t Target() const { return question_.step.value_or(facts_.step + 1); }

  void ExplainSwitch() {
    const v1::PlanSpec& spec = plan_->spec;
    const int64_t target = Target(), first = spec.effective_at_step();
    if (question_.hypothetical) {
      Stage("enabled", true, "as if dumping were switched on");
    } else if (!spec.enabled()) {
      Stage("enabled", false,
            absl::StrCat("dumping is off since step ", first,
                         " (rankprobe enable)"));
    } else if (target < first) {
      Stage("enabled", false, absl::StrCat("dumping begins at step ", first));
    } else if (spec.from_first_step()) {
      Stage(
          "enabled", true,
          absl::StrCat("dumping is on for ", Counted(spec.for_steps(), "step"),
                       ", from the first that a rank begins"));
    } else if (spec.for_steps() > 0 && target >= first + spec.for_steps()) {
      Stage(
          "enabled", false,
          absl::StrCat("dumping was on for ", Counted(spec.for_steps(), "step"),
                       ", from ", first, " to ", first + spec.for_steps() - 1));
    } else {
      Stage("enabled", true,
            absl::StrCat("dumping is on from step ", first,
                         spec.for_steps() > 0
                             ? absl::StrCat(" for ", spec.for_steps(), " steps")
                             : ""));
    }
  }

  // The list is not parsed: if it does not contain the word, it does not
  // contain the function.
  void ExplainList() {
    const absl::string_view list = facts_.api_list;
    if (list.empty()) return;
    const absl::string_view function = FunctionOf(question_.call);
    const bool named = ClassifyEntry(question_.call) == EntryKind::kModule ||
                       absl::StrContains(list, function);
    Stage("functions", named,
          named ? std::string("an operator's list of functions is in force "
                              "(rankprobe config get --json)")
                : absl::StrCat("the operator's list of functions does not "
                               "name \"",
                               function,
                               "\" (rankprobe config set --own-api-list)"));
  }

  void ExplainFilters() {
    const Plan& plan = plan_->plan;
    const auto rank = RankOf(facts_.identity);
    const std::string ranks = plan.ranks.all()
                                  ? "all ranks"
                                  : absl::StrCat("ranks ", plan.ranks.Text());
    Stage("rank", plan.WantsRank(rank),
          rank.has_value()
              ? absl::StrCat("rank ", *rank, "; the plan selects ", ranks)
              : absl::StrCat("the process has no rank; the plan selects ",
                             ranks));
    std::string steps = plan.steps.all()
                            ? "all steps"
                            : absl::StrCat("steps ", plan.steps.Text());
    if (plan.monitor.every > 1)
      absl::StrAppend(&steps, ", each ", plan.monitor.every, " steps");
    Stage("step", plan.WantsStep(Target()),
          absl::StrCat("step ", Target(), "; the plan selects ", steps));
    if (!plan.request_id.empty()) {
      Stage(
          "request", true,
          absl::StrCat("of steps with request \"", VisibleText(plan.request_id),
                       "\" its rows, no other steps; a step that names no "
                       "requests is recorded completely"));
    }
    if (!plan.RecordsValues())
      Stage("task", false, "task structure records no values");
    if (facts_.degrade > 0) {
      Stage("budget", facts_.degrade < 2,
            facts_.degrade < 2
                ? "the run's byte budget is spent: statistics, no tensors"
                : "the run's byte budget is spent twice: checksums only");
    }
  }

  void Add(const std::string& entry, Verdict verdict, bool by_name) {
    ++matched_;
    if (static_cast<uint32_t>(out_.calls_size()) >= question_.max_calls) return;
    const Plan& plan = plan_->plan;
    const bool kept = verdict == Verdict::kKeep && plan.RecordsValues();
    v1::CallExplanation& call = *out_.add_calls();
    call.set_entry(entry);
    call.set_captured(kept);
    call.set_with_payload(kept && CallFilter(&plan).WantsPayload(entry));
    if (verdict != Verdict::kKeep)
      call.set_stage(std::string(VerdictName(verdict)));
    std::string reason = VerdictReason(plan, verdict, entry);
    if (by_name && PlanHasWindows(plan)) {
      absl::StrAppend(
          &reason, "; by its name alone: windows hang on the order of calls");
    }
    call.set_reason(std::move(reason));
  }

  void ExplainCalls() {
    const bool known =
        facts_.report.has_value() && facts_.report->calls().items_size() > 0;
    if (!known) {
      Stage("hooked", question_.call.empty(),
            facts_.connected
                ? "no call of this rank has been seen: dumping and flight "
                  "recorder were off, or nothing is hooked"
                : "unknown: its calls are known only while it is connected");
      if (!question_.call.empty()) {
        const bool is_module =
            ClassifyEntry(question_.call) == EntryKind::kModule;
        Add(question_.call,
            CallFilter(&plan_->plan).CouldKeep(question_.call, is_module),
            /*by_name=*/true);
      }
      return Finish();
    }
    CallFilter filter(&plan_->plan);
    ReplayTrace(facts_.report->calls(), &filter,
                [this](const v1::CallTrace::Item& item, Verdict verdict) {
                  ++known_;
                  const std::string entry =
                      item.kind() == v1::CallTrace::KIND_PARAMETERS_GRAD
                          ? absl::StrCat(item.entry(), ".parameters_grad")
                          : item.entry();
                  if (absl::StrContains(entry, question_.call))
                    Add(entry, verdict, /*by_name=*/false);
                });
    out_.set_calls_step(facts_.report->step());
    Stage("hooked", matched_ > 0,
          matched_ > 0
              ? absl::StrCat(known_, " calls seen in step ",
                             facts_.report->step(),
                             facts_.report->truncated() ? " (and more)" : "")
              : absl::StrCat("none of the ", known_, " calls of step ",
                             facts_.report->step(), " has \"", question_.call,
                             "\" in its name"));
    Finish();
  }

  void Finish() {
    out_.set_calls_known(known_);
    out_.set_calls_matched(matched_);
  }

  const ExplainQuestion& question_;
  const std::shared_ptr<const CompiledPlan> plan_;
  const RankFacts& facts_;
  v1::RankExplanation out_;
  uint64_t known_ = 0, matched_ = 0;
};

absl::string_view RiskLevelName(RiskLevel level) {
  switch (level) {
    case RiskLevel::kAll:
      return "ALL";
    case RiskLevel::kCore:
      return "CORE";
    case RiskLevel::kFocus:
      return "FOCUS";
  }
  return "";
}

}  // namespace

std::string VerdictReason(const Plan& plan, Verdict verdict,
                          absl::string_view entry) {
  switch (verdict) {
    case Verdict::kKeep:
      return "kept";
    case Verdict::kLevel:
      return absl::StrCat(
          "level ", std::string(LevelName(plan.level)),
          plan.RecordsCommunication()
              ? " records modules and communication, not other API calls"
          : plan.RecordsModules() ? " records modules, not API calls"
          : plan.RecordsApis()    ? " records API calls, not modules"
                                  : " records what save() is given");
    case Verdict::kScope:
      return absl::StrCat("not between ", absl::StrJoin(plan.scope, " and "));
    case Verdict::kList:
      return absl::StrCat("no element of list is in its name: ",
                          absl::StrJoin(plan.list, ", "));
    case Verdict::kRiskLevel:
      return absl::StrCat("below risk_level ",
                          std::string(RiskLevelName(plan.risk_level)));
    case Verdict::kDataMode:
      return IsBackwardEntry(entry) ? "data_mode has no backward in it"
                                    : "data_mode excludes all of it";
  }
  return "";
}

v1::RankExplanation ExplainRank(const ExplainQuestion& question,
                                std::shared_ptr<const CompiledPlan> plan,
                                const RankFacts& facts) {
  return Explainer(question, std::move(plan), facts).Explain();
}

}  // namespace rankprobe
