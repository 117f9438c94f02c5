// SPDX-License-Identifier: Apache-2.0
// config.json compiled: what to record. Immutable after construction, freely
// copied and shared between threads. Field meanings: docs/formats.md,
// "config.json"; legal values and defaults are those of msprobe.
#ifndef RANKPROBE_COMMON_CONFIG_PLAN_H_
#define RANKPROBE_COMMON_CONFIG_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor/statistics.h"

namespace rankprobe {

enum class Task { kStatistics, kTensor, kStructure, kMonitor };
enum class Level { kL0, kL1, kMix, kDebug };
enum class RiskLevel { kAll, kCore, kFocus };
enum class SummaryMode { kStatistics, kMd5, kXor };

// first .. last, both inclusive.
struct IntInterval {
  int64_t first = 0;
  int64_t last = 0;
};

// Set of integers, stored as intervals: its cost does not depend on their
// length. An empty set contains everything.
class IntSet {
 public:
  IntSet() = default;
  explicit IntSet(const std::vector<int64_t>& values);
  // Merges overlapping and adjacent intervals.
  static IntSet OfIntervals(std::vector<IntInterval> intervals);
  bool all() const { return intervals_.empty(); }
  // True when all() or v is a member.
  bool Contains(int64_t v) const;
  // Largest member; nullopt when all().
  std::optional<int64_t> Max() const;
  // Sorted, disjoint and not adjacent.
  const std::vector<IntInterval>& intervals() const { return intervals_; }
  // Number of members; 0 when all().
  uint64_t size() const;
  // "1,3-6"; at most about 200 bytes, then "..".
  std::string Text() const;

 private:
  std::vector<IntInterval> intervals_;
};

struct DataMode {
  bool forward = true;
  bool backward = true;
  bool input = true;
  bool output = true;
  // parameters_grad hooks are not installed for forward-only modes.
  bool parameters_grad = true;
};

// For task monitor: which steps are recorded, and which values besides the
// modules, which data_mode selects.
struct MonitorSpec {
  // Record every `every`th step, from the first selected one on.
  int64_t every = 1;
  // Record each parameter, and its gradient, as they are before the optimizer's
  // step.
  bool weight_gradients = false;
  bool parameters = false;
  // Record the optimizer's state of each parameter.
  bool optimizer = false;
  // Record the change of each parameter by the step, which requires a copy of
  // it.
  bool updates = false;
  // Record loss, learning rate, norm of all gradients, and time of the step.
  bool training = false;
  // Record collectives and point-to-point calls, inputs and outputs.
  bool communication = false;
};

struct SliceSpec {
  int64_t dim = 0;
  std::optional<int64_t> size;
  int64_t begin = 0;
  int64_t end = 0;
};

struct Plan {
  Task task = Task::kStatistics;
  Level level = Level::kL1;
  std::string dump_path;
  IntSet ranks;
  IntSet steps;
  std::vector<std::string> scope;  // empty or two entries
  std::vector<std::string> list;
  std::vector<std::string> tensor_list;
  DataMode data_mode;
  SummaryMode summary_mode = SummaryMode::kStatistics;
  Precision precision = Precision::kLow;
  // Statistics in addition to Max, Min, Mean and Norm; empty if those are not
  // recorded.
  ExtraSet extra_statistics;
  RiskLevel risk_level = RiskLevel::kFocus;
  bool async_dump = false;
  bool extra_info = true;
  // A front end with a remote collector fetches each step into dump_path.
  bool auto_export = false;
  // Absent if the switch is static; else its initial state.
  std::optional<bool> dump_enable;
  // A dump directory, or "run:NAME" for a run in the archive; empty for none.
  std::string bench_path;
  int64_t diff_nums = 1;  // -1 = unlimited
  std::vector<SliceSpec> slices;
  MonitorSpec monitor;
  // For a server: only steps with this request are recorded, and only its rows
  // of their tensors.
  std::string request_id;
  // Namespaces of torch.ops whose operators are recorded as NS.op. Absent: the
  // front end's default.
  std::optional<std::vector<std::string>> custom_op_namespaces;
  // Functions to record instead of the front end's own list (api_list.h). It is
  // not a field of config.json: an operator sets it. Empty: the front end's
  // own.
  std::string api_list;

  // Whether the rank is selected. A rank filter selects nothing if the rank is
  // not known.
  bool WantsRank(std::optional<int64_t> rank) const;
  bool WantsStep(int64_t step) const;
  // Whether the level records API calls; modules, with the tree that they form
  // with their calls; values passed to save().
  bool RecordsApis() const {
    return level == Level::kL1 || level == Level::kMix;
  }
  bool RecordsModules() const {
    return (level == Level::kL0 || level == Level::kMix) &&
           (!Monitors() || data_mode.forward || data_mode.backward ||
            data_mode.parameters_grad);
  }
  bool RecordsSaved() const { return level == Level::kDebug; }
  // Whether calls of torch.distributed are the only recorded API calls,
  // whatever the level.
  bool RecordsCommunication() const {
    return Monitors() && monitor.communication;
  }
  // Whether statistics over a complete training are recorded: of modules, and
  // of parameters and the step, in records like those of save().
  bool Monitors() const { return task == Task::kMonitor; }
  // Whether calls have values; otherwise only their names are recorded.
  bool RecordsValues() const { return task != Task::kStructure; }
  // Whether the bytes of every tensor are recorded.
  bool KeepsAllTensors() const { return task == Task::kTensor; }
  // Whether an element of `list` selects all calls inside the modules that it
  // names.
  bool HasListWindows() const {
    return RecordsApis() && RecordsModules() && !list.empty();
  }
  // Whether `step` is after the last selected step.
  bool FinishedBefore(int64_t step) const;
  // Whether dump_tensor_data exists: task tensor, or statistics with a
  // tensor_list.
  bool HasPayloads() const;
  // Whether forwards are compared with the reference; only tensors that differ
  // are kept.
  bool ComparesWithReference() const;
  // The NAME of "run:NAME"; empty if the reference is a directory or absent.
  std::string ReferenceRun() const;
};

absl::string_view TaskName(Task task);
absl::string_view LevelName(Level level);

// Constructor arguments of PrecisionDebugger, which override the file.
struct ConfigOverrides {
  std::optional<std::string> task;
  std::optional<std::string> dump_path;
  std::optional<std::string> level;
  // JSON text of the step list, "[0,\"2-3\"]".
  std::optional<std::string> step_json;
};

struct ConfigResult {
  Plan plan;
  // Unknown keys and ignored combinations, one line each.
  std::vector<std::string> warnings;
};

// Parses a complete config.json. INVALID_ARGUMENT lists every fault, one line
// each: field, value, legal values. `json` is untrusted; at most 1 MiB.
absl::StatusOr<ConfigResult> ParseConfig(absl::string_view json,
                                         const ConfigOverrides& overrides);

enum class UnknownKeys { kWarn, kRefuse };

// The same for a file that a person wrote: each line of the message, and each
// warning, begins with its place, "FILE:LINE:COLUMN: ".
absl::StatusOr<ConfigResult> ParseConfigFile(absl::string_view file,
                                             absl::string_view json,
                                             UnknownKeys unknown);

// The built-in default (task statistics, level L1, dump_path "./dump_path").
absl::string_view DefaultConfigJson();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_PLAN_H_
