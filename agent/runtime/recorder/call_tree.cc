// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/call_tree.h"

#include <algorithm>

namespace rankprobe {

int64_t CallTree::ParametersNumber(absl::string_view module,
                                   absl::string_view parameter) {
  const auto [it, is_new] = parameter_rounds_.try_emplace(module);
  if (is_new) {
    it->second.first_parameter = std::string(parameter);
  } else if (it->second.first_parameter == parameter) {
    ++it->second.number;
  }
  return it->second.number;
}

std::optional<std::string> CallTree::Parent() {
  const std::vector<std::string>& open = Open();
  if (open.empty()) return std::nullopt;
  return open.back();
}

bool CallTree::Pop(const std::string& entry) {
  std::vector<std::string>& open = Open();
  const auto at = std::find(open.rbegin(), open.rend(), entry);
  if (at == open.rend()) return false;
  open.erase(std::next(at).base(), open.end());
  return true;
}

void CallTree::AddEdge(const std::string& entry,
                       const std::optional<std::string>& parent) {
  v1::ConstructEdge* edge = records_->Add()->mutable_edge();
  edge->set_entry(entry);
  if (parent.has_value()) edge->set_parent(*parent);
}

void CallTree::AddLaterEdges() {
  for (const auto& [entry, parent] : later_) AddEdge(entry, parent);
  later_.clear();
}

void CallTree::AddStack(const std::string& entry,
                        const std::vector<std::string>& frames,
                        uint64_t number) {
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
      v1::StackDef* def = records_->Add()->mutable_stack();
      def->set_id(id);
      for (const std::string& frame : frames) def->add_frames(frame);
    }
  }
  v1::StackUse* use = records_->Add()->mutable_stack_use();
  use->set_id(id);
  use->set_entry(entry);
}

void CallTree::EndStep() {
  numbers_.clear();
  parameter_rounds_.clear();
  open_.clear();
  later_.clear();
  stacks_.clear();
  numbered_stacks_.clear();
}

}  // namespace rankprobe
