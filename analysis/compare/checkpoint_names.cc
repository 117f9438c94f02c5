// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/checkpoint_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "analysis/calls/node_names.h"

namespace rankprobe::analysis {
namespace {

struct NumberedName {
  absl::string_view before;  // the number
  int64_t number = 0;
  absl::string_view after;
};

// The number of an API call is before its direction and also names its
// backward. The numbers of a module's forward and backward calls are after the
// direction, and independent of each other.
std::optional<NumberedName> Parse(absl::string_view entry) {
  const NodeDirection at = DirectionOf(entry);
  if (at.direction.empty()) return std::nullopt;
  NumberedName name;
  absl::string_view digits = at.number;
  if (digits.empty()) digits = at.head.substr(at.head.rfind('.') + 1);
  if (!absl::SimpleAtoi(digits, &name.number)) return std::nullopt;
  const size_t begin = static_cast<size_t>(digits.data() - entry.data());
  name.before = entry.substr(0, begin);
  name.after = entry.substr(begin + digits.size());
  return name;
}

// Whether a frame is that in which a checkpoint of PyTorch, DeepSpeed or
// Megatron computes its calls again.
bool IsOfCheckpoint(absl::string_view frame) {
  if (absl::StrContains(frame, "torch/utils/checkpoint.py,")) {
    return absl::StrContains(frame, ", in recompute_fn,") ||
           absl::StrContains(frame, ", in backward,");
  }
  return absl::StrContains(frame, ", in backward,") &&
         (absl::StrContains(frame,
                            "activation_checkpointing/checkpointing.py,") ||
          absl::StrContains(frame, "tensor_parallel/random.py,"));
}

}  // namespace

RecomputedCalls::RecomputedCalls(const DumpReader& dump) {
  absl::flat_hash_map<uint32_t, bool> known;  // by the id of a stack
  for (size_t i = 0; i < dump.size(); ++i) {
    const absl::string_view entry = dump.name(i);
    const std::optional<uint32_t> stack = dump.StackId(entry);
    if (!stack.has_value() || IsBackwardNode(entry)) continue;
    const auto [it, is_new] = known.try_emplace(*stack, false);
    if (is_new) {
      const std::vector<std::string>& frames = *dump.Stack(entry);
      it->second = std::any_of(frames.begin(), frames.end(), IsOfCheckpoint);
    }
    if (!it->second) continue;
    const std::optional<NumberedName> name = Parse(entry);
    if (!name.has_value()) continue;
    numbers_[std::string(name->before)].push_back(name->number);
  }
  for (auto& [name, numbers] : numbers_) {
    std::sort(numbers.begin(), numbers.end());
  }
}

int64_t RecomputedCalls::size() const {
  size_t size = 0;
  for (const auto& [name, numbers] : numbers_) size += numbers.size();
  return static_cast<int64_t>(size);
}

std::optional<std::string> RecomputedCalls::WithoutThem(
    absl::string_view entry) const {
  const std::optional<NumberedName> name = Parse(entry);
  if (!name.has_value()) return std::string(entry);
  const auto it = numbers_.find(name->before);
  if (it == numbers_.end()) return std::string(entry);
  const auto at =
      std::lower_bound(it->second.begin(), it->second.end(), name->number);
  if (at != it->second.end() && *at == name->number) {
    return std::nullopt;
  }
  return absl::StrCat(name->before, name->number - (at - it->second.begin()),
                      name->after);
}

std::string WithoutWrappers(absl::string_view entry) {
  return absl::StrReplaceAll(entry, {{"._checkpoint_wrapped_module.", "."},
                                     {"._fsdp_wrapped_module.", "."}});
}

}  // namespace rankprobe::analysis
