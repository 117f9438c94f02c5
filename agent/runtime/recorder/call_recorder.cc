// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/call_recorder.h"

#include "absl/strings/str_cat.h"
#include "common/records/entry_names.h"

namespace rankprobe {
namespace {

v1::CallKind ForwardKind(const RecordedCall& call) {
  return call.is_module ? v1::CALL_KIND_MODULE_FORWARD
                        : v1::CALL_KIND_API_FORWARD;
}

}  // namespace

RecordedCall CallRecorder::BeginApi(absl::string_view prefix,
                                    absl::string_view op) {
  RecordedCall call;
  if (!core_->Records()) return call;
  absl::MutexLock lock(&core_->mutex);
  if (!core_->records.begun()) return call;
  const int64_t number = core_->tree.Number(absl::StrCat(prefix, ".", op));
  call.forward_entry = ApiEntry(prefix, op, number, /*forward=*/true);
  call.backward_entry = ApiEntry(prefix, op, number, /*forward=*/false);
  Judge(core_->filter.Ask(v1::CallTrace::KIND_API, call.forward_entry), &call);
  return call;
}

RecordedCall CallRecorder::BeginModule(absl::string_view module) {
  RecordedCall call;
  if (!core_->Records()) return call;
  absl::MutexLock lock(&core_->mutex);
  if (!core_->records.begun()) return call;
  call.is_module = true;
  const int64_t number = core_->tree.Number(module);
  call.forward_entry = ModuleEntry(module, number, /*forward=*/true);
  call.backward_entry = ModuleEntry(module, number, /*forward=*/false);
  if (core_->filter.wants_edges()) core_->tree.AddEdgeLater(call.forward_entry);
  core_->tree.Push(call.forward_entry);
  Judge(core_->filter.Ask(v1::CallTrace::KIND_MODULE_BEGIN, call.forward_entry),
        &call);
  return call;
}

void CallRecorder::Judge(Verdict verdict, RecordedCall* call) {
  StepFilter& filter = core_->filter;
  call->step_generation = core_->records.generation();
  call->forced = call->is_module && verdict == Verdict::kLevel &&
                 modules_forced_ && filter.plan().RecordsApis();
  // data_mode leaves out the data, not the stack.
  call->stack_wanted = verdict == Verdict::kKeep ||
                       verdict == Verdict::kDataMode || call->forced;
  call->kept = call->stack_wanted && verdict != Verdict::kDataMode &&
               filter.plan().RecordsValues();
  call->needs =
      core_->records.NeedsFor(filter.plan().HasPayloads() &&
                              (filter.WantsPayload(call->forward_entry) ||
                               filter.WantsPayload(call->backward_entry)));
  core_->records.CountForward(call->stack_wanted);
}

bool CallRecorder::Add(const std::string& entry, v1::CallKind kind,
                       BuildPhase build, ReferenceComparer::Phase phase,
                       bool may_wait) {
  StepRecords& records = core_->records;
  // If this call waits for room, other threads wait for the lock, and must not
  // keep the locks of the program meanwhile.
  if (may_wait) due_.store(true, std::memory_order_relaxed);
  const bool in_full = records.AddPhase(entry, kind, build, phase, may_wait);
  due_.store(!may_wait && records.IsDue(), std::memory_order_relaxed);
  return in_full;
}

void CallRecorder::Inputs(const RecordedCall& call, BuildPhase build,
                          bool may_wait) {
  if (!call.kept || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!IsOfStep(call) || !core_->filter.plan().data_mode.input) return;
  Add(call.forward_entry, ForwardKind(call), build,
      ReferenceComparer::Phase::kInputs, may_wait);
}

bool CallRecorder::Outputs(const RecordedCall& call, BuildPhase build,
                           bool late, bool may_wait) {
  if (call.forward_entry.empty() || core_->Forked()) return false;
  absl::MutexLock lock(&core_->mutex);
  if (!IsOfStep(call)) return false;
  bool in_full = false;
  if (call.is_module) EndModule(call);
  StepFilter& filter = core_->filter;
  if (call.kept && filter.plan().data_mode.output) {
    in_full = Add(call.forward_entry, ForwardKind(call), build,
                  late ? ReferenceComparer::Phase::kOther
                       : ReferenceComparer::Phase::kOutputs,
                  may_wait);
  }
  if (filter.wants_edges()) {
    if (!call.is_module && filter.plan().RecordsApis())
      core_->tree.AddEdge(call.forward_entry, core_->tree.Parent());
    core_->tree.AddLaterEdges();
  }
  StopIfSpent();
  return in_full;
}

void CallRecorder::InputsInFull(const RecordedCall& call, BuildPhase build) {
  if (!call.kept || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!IsOfStep(call) || !core_->records.begun() ||
      !core_->filter.plan().data_mode.input)
    return;
  core_->records.AddPhaseInFull(call.forward_entry, ForwardKind(call), build);
}

void CallRecorder::LateOutputs(const RecordedCall& call, BuildPhase build) {
  if (!call.kept || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!IsOfStep(call) || !core_->records.begun() ||
      !core_->filter.plan().data_mode.output)
    return;
  core_->records.AddPhase(call.forward_entry, v1::CALL_KIND_API_FORWARD, build,
                          ReferenceComparer::Phase::kOutputs);
  StopIfSpent();
}

void CallRecorder::EndModule(const RecordedCall& call) {
  core_->filter.Ask(v1::CallTrace::KIND_MODULE_END, call.forward_entry);
  core_->tree.Pop(call.forward_entry);
}

void CallRecorder::StopIfSpent() {
  if (core_->records.CutIfSpent())
    core_->recording.store(false, std::memory_order_relaxed);
}

void CallRecorder::Abandon(const RecordedCall& call) {
  if (call.forward_entry.empty() || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!IsOfStep(call)) return;
  core_->records.reference().Abandon(call.forward_entry);
  if (call.is_module) EndModule(call);
}

bool CallRecorder::WantsBackward(const RecordedCall& call) const {
  if (call.forward_entry.empty() || core_->Forked()) return false;
  absl::MutexLock lock(&core_->mutex);
  return WantsBackwardLocked(call);
}

bool CallRecorder::WantsBackwardLocked(const RecordedCall& call) const {
  return IsOfStep(call) && core_->records.begun() &&
         (core_->filter.plan().data_mode.backward ||
          core_->filter.wants_edges());
}

void CallRecorder::BeginModuleBackward(const RecordedCall& call) {
  if (call.forward_entry.empty() || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!WantsBackwardLocked(call)) return;
  if (core_->filter.wants_edges())
    core_->tree.AddEdgeLater(call.backward_entry);
  core_->tree.Push(call.backward_entry);
  core_->filter.Ask(v1::CallTrace::KIND_MODULE_BEGIN, call.backward_entry);
}

void CallRecorder::Backward(const RecordedCall& call, BuildPhase build,
                            bool may_wait) {
  if (call.forward_entry.empty() || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!WantsBackwardLocked(call)) return;
  StepFilter& filter = core_->filter;
  Verdict verdict;
  bool begun = false;
  if (call.is_module) {
    begun = core_->tree.Pop(call.backward_entry);
    if (!begun)
      filter.Ask(v1::CallTrace::KIND_MODULE_BEGIN, call.backward_entry);
    verdict = filter.Ask(v1::CallTrace::KIND_MODULE_END, call.backward_entry);
    if (call.forced && verdict == Verdict::kLevel) verdict = Verdict::kKeep;
  } else {
    verdict = filter.Ask(v1::CallTrace::KIND_API, call.backward_entry);
  }
  const Plan& plan = filter.plan();
  if (filter.wants_edges()) {
    if (!begun && (call.is_module || plan.RecordsApis()))
      core_->tree.AddEdge(call.backward_entry, core_->tree.Parent());
    core_->tree.AddLaterEdges();
  }
  if (verdict != Verdict::kKeep || !plan.RecordsValues()) {
    core_->records.CountFiltered();
    return;
  }
  Add(
      call.backward_entry,
      call.is_module ? v1::CALL_KIND_MODULE_BACKWARD
                     : v1::CALL_KIND_API_BACKWARD,
      [&](CallBuilder& builder, v1::CallPhase* phase) {
        build(builder, phase);
        if (!plan.data_mode.input) phase->clear_input();
        if (!plan.data_mode.output) phase->clear_output();
      },
      ReferenceComparer::Phase::kOther, may_wait);
}

void CallRecorder::ParameterGradient(absl::string_view module,
                                     absl::string_view parameter,
                                     const TensorInfo& gradient) {
  ParameterGradient(module, parameter,
                    [&](CallBuilder& builder, v1::Value* out) {
                      builder.Tensor(gradient, out);
                    });
}

void CallRecorder::ParameterGradient(
    absl::string_view module, absl::string_view parameter,
    absl::FunctionRef<void(CallBuilder&, v1::Value*)> build, bool may_wait) {
  if (core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  StepRecords& records = core_->records;
  if (!records.begun() || records.spent() ||
      core_->filter.Ask(v1::CallTrace::KIND_PARAMETERS_GRAD, module) !=
          Verdict::kKeep ||
      !core_->filter.plan().RecordsValues())
    return;
  const int64_t number = core_->tree.ParametersNumber(module, parameter);
  TensorRecorder& tensors = records.tensors();
  const auto add = [&](CallBuilder& builder, v1::CallPhase* phase) {
    v1::NamedValue* item = phase->mutable_gradients()->add_items();
    item->set_name(std::string(parameter));
    // A gradient has the rows of a weight, not those of a batch.
    const std::optional<SliceSpec> rows = tensors.rows();
    tensors.SetRows(std::nullopt);
    build(builder, item->mutable_value());
    tensors.SetRows(rows);
  };
  Add(ParametersGradEntry(module, number), v1::CALL_KIND_PARAMETERS_GRAD, add,
      ReferenceComparer::Phase::kOther, may_wait);
}

void CallRecorder::PushScope(absl::string_view name) {
  if (!core_->Records()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!core_->records.begun()) return;
  if (core_->filter.plan().RecordsApis() && core_->filter.wants_edges())
    core_->tree.AddEdge(std::string(name), {});
  core_->tree.Push(std::string(name));
}

void CallRecorder::PopScope(absl::string_view name) {
  if (core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  core_->tree.Pop(std::string(name));
}

void CallRecorder::ResetModules() {
  if (core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  core_->tree.CloseAll();
}

bool CallRecorder::WantsStacks() const {
  absl::MutexLock lock(&core_->mutex);
  return core_->filter.plan().extra_info;
}

void CallRecorder::UseStack(const RecordedCall& call,
                            const std::vector<std::string>& frames,
                            uint64_t number) {
  if (call.forward_entry.empty() || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  if (!IsOfStep(call) || !core_->filter.plan().extra_info) return;
  core_->tree.AddStack(call.forward_entry, frames, number);
}

}  // namespace rankprobe
