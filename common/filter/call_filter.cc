// SPDX-License-Identifier: Apache-2.0
#include "common/filter/call_filter.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "common/records/entry_names.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kCommunicationPrefix = "Distributed.";

bool MatchesAny(const std::vector<std::string>& needles,
                absl::string_view entry) {
  return std::any_of(needles.begin(), needles.end(),
                     [entry](const std::string& needle) {
                       return absl::StrContains(entry, needle);
                     });
}

}  // namespace

absl::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kKeep:
      return "keep";
    case Verdict::kLevel:
      return "level";
    case Verdict::kScope:
      return "scope";
    case Verdict::kList:
      return "list";
    case Verdict::kRiskLevel:
      return "risk_level";
    case Verdict::kDataMode:
      return "data_mode";
  }
  return "";
}

CallFilter::CallFilter(const Plan* plan) : plan_(plan) {}

void CallFilter::BeginStep() {
  scope_open_ = false;
  list_windows_ = 0;
  open_modules_.clear();
  backward_kept_.clear();
}

Verdict CallFilter::Decide(absl::string_view entry, bool is_module,
                           bool scope_open, bool in_list_window) const {
  if (!is_module && plan_->RecordsCommunication())
    return DecideCommunication(entry, scope_open);
  if (!(is_module ? plan_->RecordsModules() : plan_->RecordsApis()))
    return Verdict::kLevel;
  if (!plan_->scope.empty() && !scope_open) return Verdict::kScope;
  if (!plan_->list.empty() && !in_list_window &&
      !MatchesAny(plan_->list, entry))
    return Verdict::kList;
  if (plan_->scope.empty() && plan_->list.empty() && !is_module &&
      !RiskLevelKeeps(plan_->risk_level, entry)) {
    return Verdict::kRiskLevel;
  }
  const bool backward = IsBackwardEntry(entry);
  if (backward ? !plan_->data_mode.backward : !plan_->data_mode.forward)
    return Verdict::kDataMode;
  return Verdict::kKeep;
}

Verdict CallFilter::DecideCommunication(absl::string_view entry,
                                        bool scope_open) const {
  if (!absl::StartsWith(entry, kCommunicationPrefix)) return Verdict::kLevel;
  if (!plan_->scope.empty() && !scope_open) return Verdict::kScope;
  // `list` names modules and parameters here, and a call belongs to none of
  // them.
  return IsBackwardEntry(entry) ? Verdict::kDataMode : Verdict::kKeep;
}

Verdict CallFilter::Api(absl::string_view entry) {
  const bool scoped = !plan_->scope.empty();
  if (scoped && entry == plan_->scope[0]) scope_open_ = true;
  const Verdict verdict = Decide(entry, /*is_module=*/false);
  // Closed after the verdict, because the end of a scope is inclusive.
  if (scoped && entry == plan_->scope[1]) scope_open_ = false;
  return verdict;
}

Verdict CallFilter::ModuleBegin(absl::string_view entry) {
  OpenModule module;
  module.entry = std::string(entry);
  if (!plan_->scope.empty() && entry == plan_->scope[0]) scope_open_ = true;
  if (plan_->HasListWindows() && MatchesAny(plan_->list, entry)) {
    module.opened_list_window = true;
    ++list_windows_;
  }
  module.verdict = Decide(entry, /*is_module=*/true);
  module.closes_scope = !plan_->scope.empty() && entry == plan_->scope[1];
  const Verdict verdict = module.verdict;
  if (verdict == Verdict::kKeep && IsBackwardEntry(entry))
    backward_kept_.insert(std::string(ModuleOfEntry(entry)));
  open_modules_.push_back(std::move(module));
  return verdict;
}

Verdict CallFilter::ModuleEnd(absl::string_view entry) {
  // Modules that were opened after the one that ends were left by an exception.
  const auto it = std::find_if(
      open_modules_.rbegin(), open_modules_.rend(),
      [entry](const OpenModule& module) { return module.entry == entry; });
  if (it == open_modules_.rend()) return Decide(entry, /*is_module=*/true);
  const Verdict verdict = it->verdict;
  while (!open_modules_.empty()) {
    const OpenModule& top = open_modules_.back();
    const bool last = top.entry == entry;
    if (top.opened_list_window) --list_windows_;
    if (top.closes_scope) scope_open_ = false;
    open_modules_.pop_back();
    if (last) break;
  }
  return verdict;
}

Verdict CallFilter::ParametersGrad(absl::string_view module_prefix) {
  if (!plan_->RecordsModules()) return Verdict::kLevel;
  if (!plan_->data_mode.parameters_grad) return Verdict::kDataMode;
  if (backward_kept_.contains(module_prefix)) return Verdict::kKeep;
  if (!plan_->scope.empty() && !scope_open_) return Verdict::kScope;
  if (!plan_->list.empty() && !MatchesAny(plan_->list, module_prefix))
    return Verdict::kList;
  return Verdict::kKeep;
}

Verdict CallFilter::CouldKeep(absl::string_view entry, bool is_module) const {
  return Decide(entry, is_module, /*scope_open=*/true,
                /*in_list_window=*/plan_->HasListWindows());
}

Verdict CallFilter::CouldKeepParametersGrad() const {
  if (!plan_->RecordsModules()) return Verdict::kLevel;
  return plan_->data_mode.parameters_grad ? Verdict::kKeep : Verdict::kDataMode;
}

bool CallFilter::WantsPayload(absl::string_view entry) const {
  if (plan_->KeepsAllTensors()) return true;
  return plan_->task == Task::kStatistics &&
         MatchesAny(plan_->tensor_list, entry);
}

}  // namespace rankprobe
