#include "common/records/call_values.h"

#include <algorithm>

#include "common/base/limits.h"

namespace rankprobe {
namespace {

using Visit = absl::FunctionRef<void(TensorPlace, const v1::TensorSummary&)>;

// Messages below `value`.
int WalkValue(const v1::Value& value, TensorPlace place, Visit visit) {
  int depth = 0;
  // No default: the compiler names a kind that is missing here.
  switch (value.kind_case()) {
    case v1::Value::kTensor:
      visit(place, value.tensor());
      break;
    case v1::Value::kP2P:
      if (value.p2p().has_tensor()) visit(place, value.p2p().tensor());
      break;
    case v1::Value::kList:
      for (const v1::Value& item : value.list().items())
        depth = std::max(depth, kListMessages + WalkValue(item, place, visit));
      break;
    case v1::Value::kMap:
      for (const v1::NamedValue& item : value.map().items()) {
        depth = std::max(depth,
                         kMapMessages + WalkValue(item.value(), place, visit));
      }
      break;
    case v1::Value::kScalar:
    case v1::Value::kObject:
    case v1::Value::kCut:
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return depth;
}

int WalkPhase(const v1::CallPhase& phase, Visit visit) {
  int depth = 0;
  const auto list = [&](CallSection section, const v1::ValueList& values) {
    for (int i = 0; i < values.items_size(); ++i)
      depth = std::max(depth, WalkValue(values.items(i), {section, i}, visit));
  };
  const auto map = [&](CallSection section, const v1::ValueMap& values) {
    for (int i = 0; i < values.items_size(); ++i) {
      depth = std::max(depth,
                       WalkValue(values.items(i).value(), {section, i}, visit));
    }
  };
  list(CallSection::kInputArgs, phase.input_args());
  map(CallSection::kInputKwargs, phase.input_kwargs());
  list(CallSection::kOutput, phase.output());
  map(CallSection::kParameters, phase.parameters());
  list(CallSection::kInput, phase.input());
  map(CallSection::kGradients, phase.gradients());
  if (phase.has_debug()) {
    depth = std::max(depth,
                     WalkValue(phase.debug(), {CallSection::kDebug, 0}, visit));
  }
  return depth;
}

}  // namespace

void ForEachPlacedTensor(const v1::CallPhase& phase, Visit visit) {
  WalkPhase(phase, visit);
}

void ForEachTensor(const v1::CallPhase& phase,
                   absl::FunctionRef<void(const v1::TensorSummary&)> visit) {
  WalkPhase(phase, [&](TensorPlace, const v1::TensorSummary& tensor) {
    visit(tensor);
  });
}

void ForEachTensor(v1::CallPhase* phase,
                   absl::FunctionRef<void(v1::TensorSummary*)> visit) {
  // The phase is the caller's to change, and so are the tensors in it.
  WalkPhase(*phase, [&](TensorPlace, const v1::TensorSummary& tensor) {
    visit(const_cast<v1::TensorSummary*>(&tensor));
  });
}

void ForEachTensor(const v1::Value& value,
                   absl::FunctionRef<void(const v1::TensorSummary&)> visit) {
  WalkValue(value, {}, [&](TensorPlace, const v1::TensorSummary& tensor) {
    visit(tensor);
  });
}

int NestedMessages(const v1::Value& value) {
  return WalkValue(value, {}, [](TensorPlace, const v1::TensorSummary&) {});
}

int NestedMessages(const v1::CallPhase& phase) {
  return WalkPhase(phase, [](TensorPlace, const v1::TensorSummary&) {});
}

}  // namespace rankprobe
