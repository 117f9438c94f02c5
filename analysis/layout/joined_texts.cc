// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/joined_texts.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {

std::string JoinedStacks(const StepRanks& ranks) {
  // Maps rank and stack to calls.
  std::map<std::pair<size_t, uint32_t>, std::vector<std::string>> calls_of;
  for (const StepRanks::Call& call : ranks.calls()) {
    const StepRanks::Source& source = call.sources[0];
    const DumpReader& dump = ranks.dump(source.rank);
    const auto stack = dump.StackId(dump.name(source.entry));
    if (stack.has_value()) {
      calls_of[{source.rank, *stack}].push_back(call.name);
    }
  }
  std::string text;
  if (calls_of.empty()) return text;
  JsonTextWriter json(&text);
  json.BeginObject();
  size_t number = 0;
  for (const auto& [stack, calls] : calls_of) {
    json.Key(absl::StrCat(number++));
    json.BeginArray();
    json.BeginArray();
    for (const std::string& call : calls) json.String(call);
    json.EndArray();
    json.BeginArray();
    for (const std::string& frame :
         ranks.dump(stack.first).stacks()[stack.second]) {
      json.String(frame);
    }
    json.EndArray();
    json.EndArray();
  }
  json.EndObject();
  return text;
}

std::string JoinedConstruct(const StepRanks& ranks) {
  std::string text;
  JsonTextWriter json(&text);
  json.BeginObject();
  absl::flat_hash_set<std::string> written;
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (const ConstructEdge& edge : ranks.dump(i).construct()) {
      const std::string child = ranks.NameOf(i, edge.child);
      if (!written.insert(child).second) continue;
      json.Key(child);
      if (edge.micro_step.has_value()) json.BeginArray();
      if (edge.parent.has_value()) {
        json.String(ranks.NameOf(i, *edge.parent));
      } else {
        json.Null();
      }
      if (!edge.micro_step.has_value()) continue;
      json.Int(*edge.micro_step);
      json.EndArray();
    }
  }
  json.EndObject();
  return written.empty() ? "" : text;
}

}  // namespace rankprobe::analysis
