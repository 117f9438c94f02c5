// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/overflow_states.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/node_names.h"
#include "analysis/calls/unwritten_tensors.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_rows.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

std::optional<double> NumberOf(const JsonValue& tensor, Stat stat) {
  const JsonValue* const value = tensor.Find(kStatInfo[stat].key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->number;
  if (value->is_bool()) return value->kind == JsonValue::Kind::kTrue ? 1 : 0;
  return std::nullopt;
}

TensorNumbers TensorNumbersOf(const JsonValue& tensor) {
  TensorNumbers out;
  out.max = NumberOf(tensor, kMax);
  out.min = NumberOf(tensor, kMin);
  out.mean = NumberOf(tensor, kMean);
  out.norm = NumberOf(tensor, kNorm);
  const JsonValue* const shape = tensor.Find("shape");
  if (shape != nullptr && shape->is_array()) {
    double elements = 1;
    for (const JsonValue& size : shape->items()) elements *= size.number;
    out.elements = elements;
  }
  return out;
}

// Visits tensors, and numbers in values that are not tensors, at any depth.
void Visit(const JsonValue& value,
           absl::FunctionRef<void(const JsonValue&)> tensor,
           absl::FunctionRef<void(double)> constant) {
  for (const JsonValue& item : value.items()) Visit(item, tensor, constant);
  if (!value.is_object()) return;
  const JsonValue* const type = value.Find("type");
  if (type == nullptr || !type->is_string()) {
    for (const JsonMember& member : value.fields())
      Visit(member.value, tensor, constant);
    return;
  }
  if (value.Find("dtype") != nullptr) {
    tensor(value);
    return;
  }
  const JsonValue* const content = value.Find("value");
  if (content != nullptr && content->is_number()) constant(content->number);
}

bool MayHoldNan(const JsonValue& tensor) {
  const JsonValue* const dtype = tensor.Find("dtype");
  if (dtype == nullptr) return false;
  const std::string name = absl::AsciiStrToLower(dtype->text);
  return absl::StrContains(name, "float") || absl::StrContains(name, "complex");
}

// Whether a tensor came out that could hold a NaN. What isfinite() or a
// comparison returns does not show that its NaN was removed.
bool HasFloatOutput(const JsonValue& record) {
  const JsonValue* const output = record.Find("output");
  bool has = false;
  if (output != nullptr) {
    Visit(
        *output,
        [&has](const JsonValue& tensor) { has = has || MayHoldNan(tensor); },
        [](double) {});
  }
  return has;
}

class StateReader {
 public:
  StateReader(const DumpReader& dump, const OverflowKinds& kinds)
      : dump_(dump), kinds_(kinds) {
    for (const ConstructEdge& edge : dump.construct()) {
      if (!edge.parent.has_value()) {
        outermost_.insert(edge.child);
      } else {
        parents_.emplace(edge.child, *edge.parent);
      }
    }
  }

  absl::StatusOr<OverflowStates> Run(int64_t rank, CommLinks* links) {
    out_.states.rank = rank;
    out_.states.dump = &dump_;
    JsonDocument record;
    for (size_t i = 0; i < dump_.size(); ++i) {
      const absl::string_view name = dump_.name(i);
      // Such tensors contain whatever the memory held before.
      if (absl::StartsWith(name, "Torch.empty")) continue;
      RP_RETURN_IF_ERROR(dump_.Read(i, &record));
      if (IsCommunication(name)) links->Add(rank, name, record.root());
      Add(i, name, NumbersOf(dump_, name, record.root()));
      if (IsParametersGradEntry(name) || HasFloatOutput(record.root()))
        last_is_bad_ = out_.states.nodes.back().bad_output;
    }
    out_.goes_on = out_.goes_on || last_is_bad_;
    return std::move(out_);
  }

 private:
  void LeaveOut(NonFinite* what) const {
    if (!kinds_.nan) what->nan = false;
    if (!kinds_.infinity) what->positive = what->negative = false;
  }

  // Whether arithmetic made infinities of this sign before.
  bool IsSeen(const NonFinite& what) const {
    return (what.positive && seen_.positive) ||
           (what.negative && seen_.negative);
  }

  void Add(size_t entry, absl::string_view name, CallNumbers numbers) {
    for (NonFinite* const what : {&numbers.inputs, &numbers.constants,
                                  &numbers.parameters, &numbers.outputs})
      LeaveOut(what);
    NodeState state;
    state.entry = entry;
    state.communication = IsCommunication(name);
    const bool gradients = IsParametersGradEntry(name);
    MadeNonFinite made = WhatCallMade(name, numbers);
    state.bad_input = IsGivenBad(name, numbers);
    // A NaN computed from infinities that are usually intended. The call that
    // made them is then at fault.
    if (made == MadeNonFinite::kNan && !state.bad_input &&
        numbers.inputs.infinite() && perhaps_.has_value() &&
        !TakesMasks(name)) {
      out_.states.nodes[*perhaps_].bad_output = true;
      perhaps_.reset();
      state.bad_input = true;
    }
    state.bad_output =
        numbers.outputs.nan || made == MadeNonFinite::kInfinity ||
        (numbers.outputs.infinite() && (state.bad_input || gradients));
    state.meant_infinity = numbers.inputs.infinite() && !state.bad_input;
    state.nan_output = numbers.outputs.nan;
    if (made == MadeNonFinite::kPerhapsMeant && !perhaps_.has_value())
      perhaps_ = out_.states.nodes.size();
    // Another rank's infinities may be a mask, so a communication is no
    // evidence for them.
    if (state.bad_output && !state.communication) seen_.Join(numbers.outputs);
    seen_.nan = seen_.nan || state.bad_input;
    Note(name, state);
    if (state.bad_output) {
      out_.goes_on = out_.goes_on || gradients ||
                     absl::StrContains(name, ".backward") || IsOutermost(name);
    }
    out_.states.nodes.push_back(state);
  }

  // Whether the values that are not finite existed before this call.
  bool IsGivenBad(absl::string_view name, const CallNumbers& numbers) const {
    return numbers.inputs.nan || numbers.parameters.any() ||
           IsSeen(numbers.inputs) ||
           (IsParametersGradEntry(name) && seen_.any()) ||
           of_bad_forward_.contains(name) || HasBadInside(name);
  }

  // Whether a call inside this module's forward received such a value: a
  // parameter of an inner module is not an input of the outer one.
  bool HasBadInside(absl::string_view name) const {
    const NodeDirection at = DirectionOf(name);
    if (!absl::StartsWith(name, "Module.") || at.direction != "forward")
      return false;
    if (!parents_.empty()) return bad_inside_.contains(name);
    // Without construct.json, the path before the class decides.
    const absl::string_view path = at.head.substr(0, at.head.rfind('.') + 1);
    const auto inside = given_bad_.lower_bound(path);
    return inside != given_bad_.end() && absl::StartsWith(*inside, path);
  }

  // Keeps the state by which later entries are judged. `state` is that of the
  // next node.
  void Note(absl::string_view name, const NodeState& state) {
    // A backward computes with the inputs and outputs of its forward.
    if ((state.bad_input || state.nan_output) &&
        DirectionOf(name).direction == "forward")
      of_bad_forward_.insert(WithDirection(name, "backward"));
    if (state.bad_input) NoteAround(name);
    ClearGradients(name, state.bad_input);
    if (IsParametersGradEntry(name) && state.bad_output && !state.bad_input)
      gradients_[ModuleOf(name)] = out_.states.nodes.size();
  }

  void NoteAround(absl::string_view name) {
    if (parents_.empty() && DirectionOf(name).direction == "forward")
      given_bad_.insert(name);
    for (auto it = parents_.find(name);
         it != parents_.end() && bad_inside_.insert(it->second).second;
         it = parents_.find(it->second)) {
    }
  }

  // A module's gradients may be written before its backward, which shows what
  // they were computed from.
  void ClearGradients(absl::string_view name, bool bad_input) {
    if (gradients_.empty() || !IsBackwardNode(name)) return;
    const auto it = gradients_.find(ModuleOf(name));
    if (it == gradients_.end()) return;
    if (bad_input) out_.states.nodes[it->second].bad_output = false;
    gradients_.erase(it);
  }

  // Returns "Module.fc.Linear" for "Module.fc.Linear.parameters_grad.0".
  static std::string ModuleOf(absl::string_view name) {
    const bool gradients = IsParametersGradEntry(name);
    return std::string(name.substr(
        0, name.rfind(gradients ? ".parameters_grad" : ".backward")));
  }

  bool IsOutermost(absl::string_view name) const {
    return absl::StartsWith(name, "Module.") && outermost_.contains(name);
  }

  const DumpReader& dump_;
  const OverflowKinds& kinds_;
  OverflowStates out_;
  // These point into the reader.
  absl::flat_hash_set<absl::string_view> outermost_;
  NonFinite seen_;
  // Parents by construct.json. This and the two members below point into the
  // reader.
  absl::flat_hash_map<absl::string_view, absl::string_view> parents_;
  // Modules around calls that received values that are not finite; without
  // construct.json, the calls themselves.
  absl::flat_hash_set<absl::string_view> bad_inside_;
  std::set<absl::string_view> given_bad_;
  // Names of the backward calls whose forward received or made a NaN.
  absl::flat_hash_set<std::string> of_bad_forward_;
  // By module: gradients that are not finite, without an earlier cause.
  absl::flat_hash_map<std::string, size_t> gradients_;
  // The first node that made infinities which are usually intended.
  std::optional<size_t> perhaps_;
  bool last_is_bad_ = false;
};

}  // namespace

CallNumbers NumbersOf(const DumpReader& dump, absl::string_view entry,
                      const JsonValue& record) {
  CallNumbers numbers;
  const UnwrittenTensors unwritten(entry, &dump.notes());
  const auto ignore = [](double) {};
  const auto to_output = [&numbers](const JsonValue& tensor) {
    numbers.AddOutput(TensorNumbersOf(tensor));
  };
  if (IsParametersGradEntry(entry)) {
    Visit(record, to_output, ignore);
    return numbers;
  }
  const auto take = [&](const JsonValue& value) {
    Visit(
        value,
        [&numbers](const JsonValue& tensor) {
          numbers.AddInput(TensorNumbersOf(tensor));
        },
        [&numbers](double constant) { numbers.constants.Add(constant); });
  };
  for (const absl::string_view key : {"input_args", "input_kwargs", "input"}) {
    const JsonValue* const section = record.Find(key);
    if (section == nullptr) continue;
    size_t index = 0;
    for (const JsonValue& item : section->items()) {
      if (!unwritten.HasInput(absl::StrCat(index++))) take(item);
    }
    for (const JsonMember& member : section->fields()) {
      if (!unwritten.HasInput(member.key)) take(member.value);
    }
  }
  if (const JsonValue* const parameters = record.Find("parameters");
      parameters != nullptr) {
    Visit(
        *parameters,
        [&numbers](const JsonValue& tensor) {
          numbers.parameters.Join(NonFiniteOf(TensorNumbersOf(tensor)));
        },
        ignore);
  }
  if (const JsonValue* const output = record.Find("output");
      output != nullptr) {
    size_t index = 0;
    for (const JsonValue& item : output->items()) {
      if (!unwritten.HasOutput(absl::StrCat(index++)))
        Visit(item, to_output, ignore);
    }
    for (const JsonMember& member : output->fields()) {
      if (!unwritten.HasOutput(member.key))
        Visit(member.value, to_output, ignore);
    }
  }
  return numbers;
}

absl::StatusOr<OverflowStates> ReadOverflowStates(int64_t rank,
                                                  const DumpReader& dump,
                                                  const OverflowKinds& kinds,
                                                  CommLinks* links) {
  return StateReader(dump, kinds).Run(rank, links);
}

}  // namespace rankprobe::analysis
