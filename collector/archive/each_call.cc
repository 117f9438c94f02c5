// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/each_call.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "collector/archive/load_step.h"
#include "common/base/status_macros.h"
#include "dump_format/step_view.h"

namespace rankprobe {

absl::Status ForEachCall(
    ArchiveReader* store, const StepKey& key, bool context,
    const std::function<absl::Status(const v1::CallEntry&)>& callback) {
  RP_ASSIGN_OR_RETURN(StepView view, LoadStep(store, key));
  absl::flat_hash_map<absl::string_view, const StepView::Stack*> stacks;
  absl::flat_hash_map<absl::string_view, absl::string_view> parents;
  if (context) {
    for (const StepView::Stack& stack : view.stacks) {
      for (const std::string& called : stack.entries) stacks[called] = &stack;
    }
    for (const v1::ConstructEdge& edge : view.edges) {
      if (edge.has_parent()) parents[edge.entry()] = edge.parent();
    }
  }
  v1::CallEntry entry;
  for (v1::CallPhase& call : view.calls) {
    entry.Clear();
    entry.set_entry(call.entry());
    if (const auto stack = stacks.find(call.entry()); stack != stacks.end()) {
      for (const std::string& frame : stack->second->frames)
        entry.add_stack(frame);
    }
    if (const auto parent = parents.find(call.entry()); parent != parents.end())
      entry.set_parent(parent->second.data(), parent->second.size());
    entry.mutable_call()->Swap(&call);
    RP_RETURN_IF_ERROR(callback(entry));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
