// SPDX-License-Identifier: Apache-2.0
// The Recorder's calls: APIs, modules, gradients, stacks and saved values.
// Steps and records are in recorder.cc.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/runtime/recorder/recorder.h"
#include "common/records/entry_names.h"

namespace rankprobe {

RecordedCall Recorder::BeginApi(absl::string_view prefix,
                                absl::string_view op) {
  RecordedCall call;
  if (!recording() || Forked()) return call;
  absl::MutexLock lock(&mutex_);
  if (!step_begun_) return call;
  const int64_t number = call_numbers_[absl::StrCat(prefix, ".", op)]++;
  call.forward_entry = ApiEntry(prefix, op, number, /*forward=*/true);
  call.backward_entry = ApiEntry(prefix, op, number, /*forward=*/false);
  call.step_generation = generation_;
  const Verdict verdict =
      AskFilter(v1::CallTrace::KIND_API, call.forward_entry);
  // data_mode takes the data, not the stack.
  call.stack_wanted =
      verdict == Verdict::kKeep || verdict == Verdict::kDataMode;
  call.kept = call.stack_wanted && verdict != Verdict::kDataMode &&
              plan_->RecordsValues();
  call.needs = NeedsOf(call);
  if (!call.stack_wanted) ++counts_.filtered;
  ++counts_.forwards.seen;
  if (call.stack_wanted) ++counts_.forwards.matched;
  return call;
}

RecordedCall::Needs Recorder::NeedsOf(const RecordedCall& call) const {
  return NeedsFor(plan_->HasPayloads() &&
                  (filter_->WantsPayload(call.forward_entry) ||
                   filter_->WantsPayload(call.backward_entry)));
}

RecordedCall::Needs Recorder::NeedsOfSaved() const {
  absl::MutexLock lock(&mutex_);
  return NeedsFor(plan_->HasPayloads());
}

RecordedCall::Needs Recorder::NeedsFor(bool payload) const {
  using Needs = RecordedCall::Needs;
  if (reference_.active()) return Needs::kNow;
  return payload || plan_->summary_mode != SummaryMode::kStatistics ||
                 plan_->precision == Precision::kHigh ||
                 !plan_->extra_statistics.empty() || !plan_->slices.empty() ||
                 tensors_.has_rows()
             ? Needs::kBytes
             : Needs::kNumbers;
}

RecordedCall Recorder::BeginModule(absl::string_view module) {
  RecordedCall call;
  if (!recording() || Forked()) return call;
  absl::MutexLock lock(&mutex_);
  if (!step_begun_) return call;
  call.is_module = true;
  const int64_t number = call_numbers_[module]++;
  call.forward_entry = ModuleEntry(module, number, /*forward=*/true);
  call.backward_entry = ModuleEntry(module, number, /*forward=*/false);
  call.step_generation = generation_;
  if (Edges()) module_edges_.emplace_back(call.forward_entry, Parent());
  ModuleStack().push_back(call.forward_entry);
  const Verdict verdict =
      AskFilter(v1::CallTrace::KIND_MODULE_BEGIN, call.forward_entry);
  call.forced =
      verdict == Verdict::kLevel && modules_forced_ && plan_->RecordsApis();
  call.stack_wanted =
      verdict == Verdict::kKeep || verdict == Verdict::kDataMode || call.forced;
  call.kept = call.stack_wanted && verdict != Verdict::kDataMode &&
              plan_->RecordsValues();
  call.needs = NeedsOf(call);
  if (!call.stack_wanted) ++counts_.filtered;
  ++counts_.forwards.seen;
  if (call.stack_wanted) ++counts_.forwards.matched;
  return call;
}

void Recorder::Inputs(const RecordedCall& call, BuildFn build) {
  if (!call.kept || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_ || !plan_->data_mode.input) return;
  AddPhase(
      call.forward_entry,
      call.is_module ? v1::CALL_KIND_MODULE_FORWARD : v1::CALL_KIND_API_FORWARD,
      build, ReferenceComparer::Phase::kInputs);
}

bool Recorder::PopStack(const std::string& entry) {
  std::vector<std::string>& stack = ModuleStack();
  const auto at = std::find(stack.rbegin(), stack.rend(), entry);
  if (at == stack.rend()) return false;
  // What is above it was left by an exception.
  stack.erase(std::next(at).base(), stack.end());
  return true;
}

void Recorder::EndModule(const RecordedCall& call) {
  AskFilter(v1::CallTrace::KIND_MODULE_END, call.forward_entry);
  PopStack(call.forward_entry);
}

void Recorder::ResetModules() {
  if (Forked()) return;
  absl::MutexLock lock(&mutex_);
  module_stacks_.erase(std::this_thread::get_id());
}

void Recorder::PushScope(absl::string_view name) {
  if (!recording() || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (!step_begun_) return;
  if (plan_->RecordsApis() && Edges()) AddEdge(std::string(name), {});
  ModuleStack().emplace_back(name);
}

void Recorder::PopScope(absl::string_view name) {
  if (Forked()) return;
  absl::MutexLock lock(&mutex_);
  PopStack(std::string(name));
}

void Recorder::LateOutputs(const RecordedCall& call, BuildFn build) {
  if (!call.kept || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_ || !step_begun_ ||
      !plan_->data_mode.output)
    return;
  AddPhase(call.forward_entry, v1::CALL_KIND_API_FORWARD, build,
           ReferenceComparer::Phase::kOutputs);
  StopIfSpent();
}

void Recorder::BeginModuleBackward(const RecordedCall& call) {
  if (!WantsBackward(call)) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_) return;
  if (Edges()) module_edges_.emplace_back(call.backward_entry, Parent());
  ModuleStack().push_back(call.backward_entry);
  AskFilter(v1::CallTrace::KIND_MODULE_BEGIN, call.backward_entry);
}

void Recorder::Outputs(const RecordedCall& call, BuildFn build, bool late) {
  if (call.forward_entry.empty() || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_) return;
  if (call.is_module) EndModule(call);
  if (call.kept && plan_->data_mode.output) {
    AddPhase(call.forward_entry,
             call.is_module ? v1::CALL_KIND_MODULE_FORWARD
                            : v1::CALL_KIND_API_FORWARD,
             build,
             late ? ReferenceComparer::Phase::kOther
                  : ReferenceComparer::Phase::kOutputs);
  }
  if (Edges()) {
    if (!call.is_module && plan_->RecordsApis())
      AddEdge(call.forward_entry, Parent());
    FlushModuleEdges();
  }
  StopIfSpent();
}

void Recorder::Abandon(const RecordedCall& call) {
  if (call.forward_entry.empty() || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_) return;
  reference_.Abandon(call.forward_entry);
  if (call.is_module) EndModule(call);
}

bool Recorder::WantsBackward(const RecordedCall& call) const {
  if (call.forward_entry.empty() || Forked()) return false;
  absl::MutexLock lock(&mutex_);
  return call.step_generation == generation_ && step_begun_ &&
         (plan_->data_mode.backward || Edges());
}

void Recorder::Backward(const RecordedCall& call, BuildFn build) {
  if (!WantsBackward(call)) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_) return;
  Verdict verdict;
  bool begun = false;
  if (call.is_module) {
    begun = PopStack(call.backward_entry);
    if (!begun)
      AskFilter(v1::CallTrace::KIND_MODULE_BEGIN, call.backward_entry);
    verdict = AskFilter(v1::CallTrace::KIND_MODULE_END, call.backward_entry);
    if (call.forced && verdict == Verdict::kLevel) verdict = Verdict::kKeep;
  } else {
    verdict = AskFilter(v1::CallTrace::KIND_API, call.backward_entry);
  }
  if (Edges()) {
    if (!begun && (call.is_module || plan_->RecordsApis()))
      AddEdge(call.backward_entry, Parent());
    FlushModuleEdges();
  }
  if (verdict != Verdict::kKeep || !plan_->RecordsValues()) {
    ++counts_.filtered;
    return;
  }
  AddPhase(call.backward_entry,
           call.is_module ? v1::CALL_KIND_MODULE_BACKWARD
                          : v1::CALL_KIND_API_BACKWARD,
           [&](CallBuilder& builder, v1::CallPhase* phase) {
             build(builder, phase);
             mutex_.AssertHeld();
             if (!plan_->data_mode.input) phase->clear_input();
             if (!plan_->data_mode.output) phase->clear_output();
           });
}

void Recorder::ParameterGradient(absl::string_view module,
                                 absl::string_view parameter,
                                 const TensorInfo& gradient) {
  ParameterGradient(module, parameter,
                    [&](CallBuilder& builder, v1::Value* out) {
                      builder.Tensor(gradient, out);
                    });
}

void Recorder::ParameterGradient(
    absl::string_view module, absl::string_view parameter,
    absl::FunctionRef<void(CallBuilder&, v1::Value*)> build) {
  if (Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (!step_begun_ || (reference_.active() && reference_.spent()) ||
      AskFilter(v1::CallTrace::KIND_PARAMETERS_GRAD, module) !=
          Verdict::kKeep ||
      !plan_->RecordsValues())
    return;
  const auto [it, is_new] = parameter_rounds_.try_emplace(std::string(module));
  if (is_new) {
    it->second.first_parameter = std::string(parameter);
  } else if (it->second.first_parameter == parameter) {
    ++it->second.number;
  }
  AddPhase(ParametersGradEntry(module, it->second.number),
           v1::CALL_KIND_PARAMETERS_GRAD,
           [&](CallBuilder& builder, v1::CallPhase* phase) {
             v1::NamedValue* item = phase->mutable_gradients()->add_items();
             mutex_.AssertHeld();
             item->set_name(std::string(parameter));
             // It has the rows of a weight, none of a batch.
             const std::optional<SliceSpec> rows = tensors_.rows();
             tensors_.SetRows(std::nullopt);
             build(builder, item->mutable_value());
             tensors_.SetRows(rows);
           });
}

bool Recorder::WantsStacks() const {
  absl::MutexLock lock(&mutex_);
  return plan_->extra_info;
}

void Recorder::UseStack(const RecordedCall& call,
                        const std::vector<std::string>& frames,
                        uint64_t number) {
  if (call.forward_entry.empty() || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (call.step_generation != generation_ || !plan_->extra_info) return;
  const auto known = numbered_stacks_.find(number);
  uint32_t id = 0;
  if (number != 0 && known != numbered_stacks_.end()) {
    id = known->second;
  } else {
    const auto [it, is_new] =
        stacks_.try_emplace(frames, static_cast<uint32_t>(stacks_.size()));
    id = it->second;
    if (number != 0) numbered_stacks_.emplace(number, id);
    if (is_new) {
      v1::StackDef* def = AddRecord()->mutable_stack();
      def->set_id(id);
      for (const std::string& frame : frames) def->add_frames(frame);
    }
  }
  v1::StackUse* use = AddRecord()->mutable_stack_use();
  use->set_id(id);
  use->set_entry(call.forward_entry);
}

bool Recorder::Save(absl::string_view name, bool with_gradient,
                    const BuildValueFn& build) {
  return SaveValue(
             name, build,
             with_gradient ? [](CallBuilder&, v1::Value*) {} : BuildValueFn())
      .has_value();
}

std::optional<Recorder::SavedValue> Recorder::SaveValue(
    absl::string_view name, const BuildValueFn& build,
    const BuildValueFn& build_gradient) {
  if (Forked() || session_ == nullptr) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const int64_t step = init_step_ + loop_;
  if (!step_begun_) {
    AdoptPlan(session_->BeginStep(step));
    if (watcher_ != nullptr) watcher_->BeginStep(step);
  }
  if (!plan_enabled_ || !(plan_->RecordsSaved() || plan_->Monitors()) ||
      !plan_->RecordsValues() || !plan_->WantsStep(step) ||
      !plan_->WantsRank(rank_)) {
    return std::nullopt;
  }
  BeginStepRecords();
  const int64_t number = call_numbers_[absl::StrCat(name, ".debug")]++;
  const auto add = [&](const std::string& entry, const BuildValueFn& fill) {
    mutex_.AssertHeld();
    const WatchedPhase watched = BeginWatched();
    v1::CallPhase* call = AddRecord()->mutable_call();
    call->set_entry(entry);
    call->set_kind(v1::CALL_KIND_DEBUG);
    CallBuilder builder(&tensors_, plan_.get(), plan_->KeepsAllTensors());
    fill(builder, call->mutable_debug());
    ++counts_.call_phases;
    EndWatched(watched, call);
  };
  add(absl::StrCat(name, ".", number, ".debug"), build);
  SavedValue saved;
  saved.step_generation = generation_;
  if (build_gradient) {
    saved.gradient_entry = absl::StrCat(name, "_grad.", number, ".debug");
    add(saved.gradient_entry, build_gradient);
  }
  SubmitIfDue();
  return saved;
}

void Recorder::SaveGradient(const SavedValue& value, absl::string_view path,
                            const BuildValueFn& build) {
  if (value.gradient_entry.empty() || Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (value.step_generation != generation_ || !step_begun_) return;
  const WatchedPhase watched = BeginWatched();
  v1::CallPhase* call = AddRecord()->mutable_call();
  call->set_entry(value.gradient_entry);
  call->set_kind(v1::CALL_KIND_DEBUG);
  call->set_debug_path(std::string(path));
  CallBuilder builder(&tensors_, plan_.get(), plan_->KeepsAllTensors());
  build(builder, call->mutable_debug());
  ++counts_.call_phases;
  EndWatched(watched, call);
  SubmitIfDue();
}

}  // namespace rankprobe
