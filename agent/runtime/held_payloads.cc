#include "agent/runtime/held_payloads.h"

namespace rankprobe {
namespace {

using Visit = absl::FunctionRef<void(v1::TensorSummary*)>;

void VisitValue(v1::Value* value, Visit visit) {
  if (value->has_tensor()) {
    visit(value->mutable_tensor());
  } else if (value->has_p2p()) {
    if (value->p2p().has_tensor())
      visit(value->mutable_p2p()->mutable_tensor());
  } else if (value->has_list()) {
    for (v1::Value& item : *value->mutable_list()->mutable_items())
      VisitValue(&item, visit);
  } else if (value->has_map()) {
    for (v1::NamedValue& item : *value->mutable_map()->mutable_items())
      VisitValue(item.mutable_value(), visit);
  }
}

void VisitList(v1::ValueList* list, Visit visit) {
  for (v1::Value& item : *list->mutable_items()) VisitValue(&item, visit);
}

void VisitMap(v1::ValueMap* map, Visit visit) {
  for (v1::NamedValue& item : *map->mutable_items())
    VisitValue(item.mutable_value(), visit);
}

}  // namespace

void ForEachTensor(v1::CallPhase* phase, Visit visit) {
  if (phase->has_input_args()) VisitList(phase->mutable_input_args(), visit);
  if (phase->has_input_kwargs()) VisitMap(phase->mutable_input_kwargs(), visit);
  if (phase->has_output()) VisitList(phase->mutable_output(), visit);
  if (phase->has_parameters()) VisitMap(phase->mutable_parameters(), visit);
  if (phase->has_input()) VisitList(phase->mutable_input(), visit);
  if (phase->has_gradients()) VisitMap(phase->mutable_gradients(), visit);
  if (phase->has_debug()) VisitValue(phase->mutable_debug(), visit);
}

void DropPayloads(v1::CallPhase* phase) {
  ForEachTensor(phase,
                [](v1::TensorSummary* tensor) { tensor->clear_payload(); });
}

}  // namespace rankprobe
