// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/call_place.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "analysis/calls/node_names.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {
namespace {

// Limits the walk if construct.json, which is not trusted, has a cycle.
constexpr size_t kMostModules = 1000;

bool IsModule(absl::string_view entry) {
  return absl::StartsWith(entry, "Module.") || absl::StartsWith(entry, "Cell.");
}

// A record of parameter gradients does not name the call it belongs to, only
// the module.
absl::string_view WithoutGradients(absl::string_view entry) {
  return entry.substr(0, entry.rfind(".parameters_grad"));
}

}  // namespace

CallPlaces::CallPlaces(const DumpReader& dump) {
  for (const ConstructEdge& edge : dump.construct()) {
    parents_[edge.child] = edge.parent.has_value()
                               ? absl::string_view(*edge.parent)
                               : absl::string_view();
  }
}

std::vector<std::string> CallPlaces::ChainOf(absl::string_view call) const {
  std::vector<std::string> chain;
  for (absl::string_view at = call;
       !at.empty() && chain.size() < kMostModules;) {
    chain.emplace_back(at);
    const auto up = parents_.find(at);
    at = up == parents_.end() ? absl::string_view() : up->second;
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

std::string CallPlaces::ModuleOf(absl::string_view call) const {
  if (IsParametersGradEntry(call)) return ModuleText(WithoutGradients(call));
  const std::vector<std::string> chain = ChainOf(call);
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    if (IsModule(*it)) return ModuleText(*it);
  }
  return "";
}

std::string ModuleText(absl::string_view entry) {
  if (!absl::ConsumePrefix(&entry, "Module.") &&
      !absl::ConsumePrefix(&entry, "Cell."))
    return "";
  const NodeDirection at = DirectionOf(entry);
  if (!at.direction.empty()) entry = at.head;
  const size_t dot = entry.rfind('.');
  // The model itself has no name before its class.
  if (dot == absl::string_view::npos) return std::string(entry);
  return absl::StrCat(entry.substr(0, dot), " (", entry.substr(dot + 1), ")");
}

std::vector<std::string> OwnFrames(const std::vector<std::string>& stack) {
  std::vector<std::string> own;
  for (const std::string& frame : stack) {
    const absl::string_view file =
        absl::string_view(frame).substr(0, frame.find(", line "));
    // The frames in which PyTorch calls a module, wherever PyTorch is
    // installed.
    if (!absl::StrContains(file, "-packages/torch/") &&
        !absl::EndsWith(file, "/torch/nn/modules/module.py"))
      own.push_back(frame);
  }
  if (own.empty() && !stack.empty()) own.push_back(stack.front());
  return own;
}

std::string CodeLineOf(const std::vector<std::string>* stack) {
  if (stack == nullptr || stack->empty()) return "";
  const std::string frame = OwnFrames(*stack).front();
  // The format is "File a.py, line 3, in f, \n x = g(y)".
  absl::string_view rest = frame;
  absl::ConsumePrefix(&rest, "File ");
  const size_t line = rest.find(", line ");
  const size_t in = rest.find(", in ");
  const size_t code = rest.find('\n');
  if (line == absl::string_view::npos || in == absl::string_view::npos ||
      in < line) {
    std::string text(rest);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
  absl::string_view function = rest.substr(
      in + 5, code == absl::string_view::npos ? code : code - in - 5);
  function = absl::StripAsciiWhitespace(function);
  absl::ConsumeSuffix(&function, ",");
  std::string out =
      absl::StrCat(rest.substr(0, line), ":",
                   rest.substr(line + 7, in - line - 7), " in ", function);
  if (code != absl::string_view::npos) {
    std::string text(absl::StripAsciiWhitespace(rest.substr(code)));
    std::replace(text.begin(), text.end(), '\n', ' ');
    absl::StrAppend(&out, ": ", text);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<DumpReader>> OpenWithModules(
    FileSystem* file_system, const std::string& directory,
    DumpReader::Options options) {
  options.construct = file_system->Exists(directory + "/construct.json");
  auto dump = DumpReader::Open(file_system, directory, options);
  if (dump.ok() || !options.construct) return dump;
  options.construct = false;
  return DumpReader::Open(file_system, directory, options);
}

int64_t StepOf(const DumpPlace& place) {
  int64_t step = place.step;
  for (absl::string_view part : absl::StrSplit(place.directory, '/')) {
    int64_t number = 0;
    if (absl::ConsumePrefix(&part, "step") && absl::SimpleAtoi(part, &number))
      step = number;
  }
  return step;
}

int64_t RankOf(const DumpPlace& place) {
  absl::string_view name = place.directory;
  name.remove_prefix(name.rfind('/') + 1);
  int64_t rank = 0;
  return absl::ConsumePrefix(&name, "rank") && absl::SimpleAtoi(name, &rank)
             ? rank
             : place.rank;
}

}  // namespace rankprobe::analysis
