#include "collector/store/payload_refs.h"

#include <algorithm>

namespace rankprobe {
namespace {

using TensorFn = std::function<void(const v1::TensorSummary&)>;

int Walk(const v1::Value& value, const TensorFn* fn) {
  switch (value.kind_case()) {
    case v1::Value::kTensor:
      if (fn != nullptr) (*fn)(value.tensor());
      return 1;
    case v1::Value::kP2P:
      if (fn != nullptr && value.p2p().has_tensor())
        (*fn)(value.p2p().tensor());
      return 1;
    case v1::Value::kList: {
      int depth = 0;
      for (const v1::Value& item : value.list().items())
        depth = std::max(depth, Walk(item, fn));
      return depth + 1;
    }
    case v1::Value::kMap: {
      int depth = 0;
      for (const v1::NamedValue& item : value.map().items())
        depth = std::max(depth, Walk(item.value(), fn));
      return depth + 1;
    }
    default:
      return 1;
  }
}

int WalkCall(const v1::CallPhase& call, const TensorFn* fn) {
  int depth = 0;
  for (const v1::ValueList* list :
       {&call.input_args(), &call.output(), &call.input()}) {
    for (const v1::Value& item : list->items())
      depth = std::max(depth, Walk(item, fn));
  }
  for (const v1::ValueMap* map :
       {&call.input_kwargs(), &call.parameters(), &call.gradients()}) {
    for (const v1::NamedValue& item : map->items())
      depth = std::max(depth, Walk(item.value(), fn));
  }
  if (call.has_debug()) depth = std::max(depth, Walk(call.debug(), fn));
  return depth;
}

}  // namespace

void ForEachTensor(const v1::CallPhase& call, const TensorFn& fn) {
  WalkCall(call, &fn);
}

int ValueDepth(const v1::CallPhase& call) { return WalkCall(call, nullptr); }

}  // namespace rankprobe
