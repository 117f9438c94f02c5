// SPDX-License-Identifier: Apache-2.0
// Places of a step's calls: their numbers, the modules and scopes that are open
// on each thread, and what construct.json and stack.json get of that.
//
// Ownership: the RecorderCore's; the records outlive it. Not thread-safe:
// guarded by the core's lock. Never fails.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_CALL_TREE_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_CALL_TREE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "agent/runtime/recorder/step_records.h"

namespace rankprobe {

class CallTree {
 public:
  explicit CallTree(StepRecords* records) : records_(records) {}

  // Returns the number of earlier entries of this name in the step.
  int64_t Number(absl::string_view name) { return numbers_[name]++; }
  // Number of the backward that computes gradients of this module's parameters:
  // increases when its first parameter occurs again.
  int64_t ParametersNumber(absl::string_view module,
                           absl::string_view parameter);

  // The innermost open entry of this thread, if there is one.
  std::optional<std::string> Parent();
  void Push(std::string entry) { Open().push_back(std::move(entry)); }
  // Closes `entry`, and entries inside it that an exception left open. Returns
  // false if it is not open.
  bool Pop(const std::string& entry);
  void CloseAll() { open_.erase(std::this_thread::get_id()); }

  void AddEdge(const std::string& entry,
               const std::optional<std::string>& parent);
  // Modules enter construct.json in the order in which they began, but only
  // when the next record is finished.
  void AddEdgeLater(const std::string& entry) {
    later_.emplace_back(entry, Parent());
  }
  void AddLaterEdges();
  // See CallRecorder::UseStack.
  void AddStack(const std::string& entry,
                const std::vector<std::string>& frames, uint64_t number);

  void EndStep();

 private:
  struct ParameterRounds {
    std::string first_parameter;
    int64_t number = 0;
  };

  std::vector<std::string>& Open() { return open_[std::this_thread::get_id()]; }

  StepRecords* const records_;
  absl::flat_hash_map<std::string, int64_t> numbers_;
  absl::flat_hash_map<std::string, ParameterRounds> parameter_rounds_;
  std::map<std::thread::id, std::vector<std::string>> open_;
  std::vector<std::pair<std::string, std::optional<std::string>>> later_;
  absl::flat_hash_map<std::vector<std::string>, uint32_t> stacks_;
  // Indices of numbered stacks, by number.
  absl::flat_hash_map<uint64_t, uint32_t> numbered_stacks_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_CALL_TREE_H_
