// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/node_names.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace rankprobe::analysis {
namespace {

bool IsDigits(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

struct Frame {
  std::string file;
  std::string function;
};

std::vector<Frame> ParseFrames(const std::vector<std::string>& stack) {
  std::vector<Frame> frames;
  for (const std::string& text : stack) {
    absl::string_view rest = absl::StripAsciiWhitespace(text);
    absl::ConsumePrefix(&rest, "File ");
    const size_t line = rest.find(", line ");
    const size_t in = rest.find(", in ");
    if (in == absl::string_view::npos) continue;
    absl::string_view function = rest.substr(in + 5);
    function = function.substr(0, function.find(','));
    frames.push_back(
        {std::string(absl::StripAsciiWhitespace(rest.substr(0, line))),
         std::string(absl::StripAsciiWhitespace(function))});
  }
  return frames;
}

}  // namespace

NodeDirection DirectionOf(absl::string_view id) {
  for (const absl::string_view direction : {"forward", "backward"}) {
    absl::string_view head = id;
    if (absl::ConsumeSuffix(&head, direction) &&
        absl::ConsumeSuffix(&head, ".")) {
      return {head, direction, ""};
    }
  }
  const size_t last = id.rfind('.');
  if (last == absl::string_view::npos || !IsDigits(id.substr(last + 1))) {
    return {};
  }
  for (const absl::string_view direction : {"forward", "backward"}) {
    absl::string_view head = id.substr(0, last);
    if (absl::ConsumeSuffix(&head, direction) &&
        absl::ConsumeSuffix(&head, ".")) {
      return {head, direction, id.substr(last + 1)};
    }
  }
  return {};
}

std::string WithDirection(absl::string_view id, absl::string_view direction) {
  const NodeDirection at = DirectionOf(id);
  if (at.direction.empty()) return "";
  std::string out = absl::StrCat(at.head, ".", direction);
  if (!at.number.empty()) absl::StrAppend(&out, ".", at.number);
  return out;
}

NodeKind NodeKindOf(absl::string_view id) {
  static const auto* const kApis = new std::set<absl::string_view>{
      "Tensor", "Torch",     "Functional",    "NPU", "VF",
      "Aten",   "Mint",      "Primitive",     "Jit", "Distributed",
      "Triton", "MindSpeed", "MintFunctional"};
  if (absl::StartsWith(id, kApiCollection)) return NodeKind::kCollection;
  const size_t dot = id.find('.');
  if (dot == absl::string_view::npos) return NodeKind::kModule;
  if (kApis->contains(id.substr(0, dot))) return NodeKind::kApi;
  if (absl::StartsWith(id, "Module.") || absl::StartsWith(id, "Cell.")) {
    return NodeKind::kModule;
  }
  // A custom API, such as "my_ops.compute.0.forward".
  const NodeDirection at = DirectionOf(id);
  const size_t number = at.head.rfind('.');
  return !at.direction.empty() && at.number.empty() &&
                 number != absl::string_view::npos &&
                 IsDigits(at.head.substr(number + 1))
             ? NodeKind::kApi
             : NodeKind::kModule;
}

bool IsBackwardNode(absl::string_view id) {
  return DirectionOf(id).direction == "backward";
}

std::string TwinOf(absl::string_view id) {
  const NodeDirection at = DirectionOf(id);
  if (at.direction.empty()) return "";
  return WithDirection(id, at.direction == "forward" ? "backward" : "forward");
}

bool IsRecompute(const std::vector<std::string>* stack) {
  if (stack == nullptr) return false;
  const std::vector<Frame> frames = ParseFrames(*stack);
  for (const Frame& frame : frames) {
    // torch.utils.checkpoint with use_reentrant=False.
    if (frame.function == "recompute_fn" &&
        absl::EndsWith(frame.file, "torch/utils/checkpoint.py")) {
      return true;
    }
  }
  for (size_t i = 0; i < frames.size(); ++i) {
    // Reentrant checkpoints recompute in the backward of an autograd function.
    const bool backward =
        frames[i].function == "backward" ||
        (frames[i].function == "checkpoint_function_backward" &&
         absl::StrContains(frames[i].file, "megatron"));
    if (!backward) continue;
    for (size_t j = i + 1; j <= i + 2 && j < frames.size(); ++j) {
      if (absl::EndsWith(frames[j].file, "torch/autograd/function.py")) {
        return true;
      }
    }
  }
  return false;
}

bool IsTornOff(absl::string_view id) {
  const std::vector<absl::string_view> parts = absl::StrSplit(id, '.');
  if (parts.size() > 7) return true;
  if (parts.size() == 7) return !(IsDigits(parts[1]) && IsDigits(parts[3]));
  return parts.size() == 6 && !IsDigits(parts[1]);
}

}  // namespace rankprobe::analysis
