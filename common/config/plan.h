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

// first .. last, both inside.
struct IntInterval {
  int64_t first = 0;
  int64_t last = 0;
};

// Set of integers, kept as intervals: what it costs does not depend on how far
// they reach. Empty = everything.
class IntSet {
 public:
  IntSet() = default;
  explicit IntSet(const std::vector<int64_t>& values);
  // Overlapping and adjacent ones become one.
  static IntSet OfIntervals(std::vector<IntInterval> intervals);
  bool all() const { return intervals_.empty(); }
  // True when all() or v is a member.
  bool Contains(int64_t v) const;
  // Largest member; nullopt when all().
  std::optional<int64_t> Max() const;
  // Sorted, apart from each other.
  const std::vector<IntInterval>& intervals() const { return intervals_; }
  // How many members; 0 when all().
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

// Of task monitor: which steps, and what of them beside the modules, which the
// data mode says.
struct MonitorSpec {
  // Each so many steps, from the first wanted one on.
  int64_t every = 1;
  // Each parameter and its gradient as the optimizer's step finds them.
  bool weight_gradients = false;
  bool parameters = false;
  // The optimizer's state of each parameter.
  bool optimizer = false;
  // What its step adds to the parameter, which takes a copy of it.
  bool updates = false;
  // Loss, learning rate, norm of all gradients, time of the step.
  bool training = false;
  // Collectives and point-to-point calls, in and out.
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
  // Beside Max, Min, Mean and Norm; empty where there are none of those.
  ExtraSet extra_statistics;
  RiskLevel risk_level = RiskLevel::kFocus;
  bool async_dump = false;
  bool extra_info = true;
  // A front end with a collector elsewhere fetches each step into dump_path.
  bool auto_export = false;
  // Absent: static. Present: the initial state of the dynamic switch.
  std::optional<bool> dump_enable;
  // A dump directory, or "run:NAME" for a run in the archive; empty: none.
  std::string bench_path;
  int64_t diff_nums = 1;  // -1 = unlimited
  std::vector<SliceSpec> slices;
  MonitorSpec monitor;
  // Of a server: only steps with this request, and of their tensors its rows.
  std::string request_id;
  // Namespaces of torch.ops whose operators are recorded as NS.op. Absent: the
  // front end's own.
  std::optional<std::vector<std::string>> custom_op_namespaces;
  // Functions to record in place of the front end's own list (api_list.h); not a
  // field of config.json: an operator gives it. Empty: the front end's own.
  std::string api_list;

  // A rank filter with no known rank matches nothing.
  bool WantsRank(std::optional<int64_t> rank) const;
  bool WantsStep(int64_t step) const;
  // What the level records: API calls; modules, and the tree they make with
  // their calls; what save() is given.
  bool RecordsApis() const {
    return level == Level::kL1 || level == Level::kMix;
  }
  bool RecordsModules() const {
    return (level == Level::kL0 || level == Level::kMix) &&
           (!Monitors() || data_mode.forward || data_mode.backward ||
            data_mode.parameters_grad);
  }
  bool RecordsSaved() const { return level == Level::kDebug; }
  // Of API calls those of torch.distributed alone, whatever the level.
  bool RecordsCommunication() const {
    return Monitors() && monitor.communication;
  }
  // Statistics over a complete training: of modules, and of parameters and the
  // step, in records like those of save().
  bool Monitors() const { return task == Task::kMonitor; }
  // Calls have values; else their names are all.
  bool RecordsValues() const { return task != Task::kStructure; }
  // The bytes of every tensor, not of some alone.
  bool KeepsAllTensors() const { return task == Task::kTensor; }
  // An element of `list` takes all calls inside the modules it names.
  bool HasListWindows() const {
    return RecordsApis() && RecordsModules() && !list.empty();
  }
  // True once `step` is beyond the last wanted step.
  bool FinishedBefore(int64_t step) const;
  // dump_tensor_data exists: task tensor, or statistics with a tensor_list.
  bool HasPayloads() const;
  // Forwards are compared with the reference; tensors are kept of differences only.
  bool ComparesWithReference() const;
  // The NAME of "run:NAME"; empty when the reference is a directory or absent.
  std::string ReferenceRun() const;
};

absl::string_view TaskName(Task task);
absl::string_view LevelName(Level level);

// Constructor arguments of PrecisionDebugger: they beat the file.
struct ConfigOverrides {
  std::optional<std::string> task;
  std::optional<std::string> dump_path;
  std::optional<std::string> level;
  // JSON text of the step list, "[0,\"2-3\"]".
  std::optional<std::string> step_json;
};

struct ConfigResult {
  Plan plan;
  // Unknown keys, ignored combinations; one line each.
  std::vector<std::string> warnings;
};

// Parses a whole config.json. INVALID_ARGUMENT lists every fault, one line
// each: field, value, legal values. `json` is untrusted; at most 1 MiB.
absl::StatusOr<ConfigResult> ParseConfig(absl::string_view json,
                                         const ConfigOverrides& overrides);

enum class UnknownKeys { kWarn, kRefuse };

// The same of a file that a person wrote: each line of the message, and each
// warning, begins with the place that it is about, "FILE:LINE:COLUMN: ".
absl::StatusOr<ConfigResult> ParseConfigFile(absl::string_view file,
                                             absl::string_view json,
                                             UnknownKeys unknown);

// The built-in default (task statistics, level L1, dump_path "./dump_path").
absl::string_view DefaultConfigJson();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_PLAN_H_
