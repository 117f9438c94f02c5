// SPDX-License-Identifier: Apache-2.0
// One process' step, merged from its records: the contents of one `rank{R}`
// directory of the dump layout. A plain value.
#ifndef RANKPROBE_DUMP_FORMAT_STEP_VIEW_H_
#define RANKPROBE_DUMP_FORMAT_STEP_VIEW_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

struct StepView {
  struct Stack {
    std::vector<std::string> frames;
    std::vector<std::string> entries;
  };
  v1::StepBegin begin;
  bool has_begin = false;
  std::optional<v1::StepEnd> end;
  // Calls in the order of dump.json.
  std::vector<v1::CallPhase> calls;
  std::vector<Stack> stacks;
  // Edges in order of first insertion; a later edge of the same entry replaces
  // it.
  std::vector<v1::ConstructEdge> edges;
  std::vector<v1::LossEvent> losses;
  std::vector<v1::ErrorEvent> errors;
  // The requests whose rows the tensors contain, and the first entry that this
  // applies to (empty: nothing was recorded under it).
  struct Requests {
    v1::StepRequests requests;
    std::string first_entry;
  };
  std::vector<Requests> requests;
  // Values of facts by section and name.
  std::map<std::pair<std::string, std::string>, std::string> facts;
};

// MindSpore's tools have their own names of types, and write .npy instead of
// .pt.
inline bool IsMindspore(const v1::StepBegin& begin) {
  return begin.framework() == "mindspore";
}

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STEP_VIEW_H_
