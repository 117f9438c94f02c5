// SPDX-License-Identifier: Apache-2.0
#include "common/config/config_fields.h"

#include <cstdint>

namespace rankprobe {
namespace {

using enum ConfigType;

constexpr unsigned kAllTasks =
    kStatisticsSection | kTensorSection | kStructureSection | kMonitorSection;
// msprobe accepts both in the section of each task, even if the task ignores
// them.
constexpr unsigned kWithValues =
    kStatisticsSection | kTensorSection | kMonitorSection;

constexpr const char* kTasks[] = {"statistics", "tensor", "structure",
                                  "monitor"};
constexpr const char* kLevels[] = {"L0", "L1", "mix", "debug"};
constexpr const char* kPrecisions[] = {"low", "high"};
constexpr const char* kRiskLevels[] = {"ALL", "CORE", "FOCUS"};
constexpr const char* kSummaryModes[] = {"statistics", "md5", "xor"};
constexpr const char* kDataModes[] = {"all", "forward", "backward", "input",
                                      "output"};
constexpr const char* kExtraWords[] = {"counts", "std"};
constexpr const char* kMonitored[] = {
    "activations",      "activation_gradients",
    "weight_gradients", "parameters",
    "optimizer",        "training",
    "communication",    "optimizer_state"};
constexpr const char* kDevices[] = {"host", "device"};
constexpr const char* kFormats[] = {"npy", "bin"};

constexpr ConfigField kFields[] = {
    {"task", kTop, kWord, R"("statistics")", R"("tensor")",
     "What is kept of each tensor: its `statistics` (Max, Min, Mean, Norm), "
     "all of its bytes (`tensor`), or names alone (`structure`). `monitor` "
     "watches a long training ([monitor](monitor.md)). The section of this "
     "name is read; those of other tasks may stand in the file.",
     kTasks},
    {"level", kTop, kWord, R"("L1")", R"("mix")",
     "What a call is: modules (`L0`), API calls (`L1`), both (`mix`), or what "
     "`save()` is given (`debug`). L0 and mix need the model: `start(model)`. "
     "Task structure is recorded at mix, task monitor at L0.",
     kLevels},
    {"dump_path", kTop, kText, "", R"("./dump")",
     "The directory of the dump; it is made. Needed, here or as an argument of "
     "the constructor, but not for a job that runs. With a collector elsewhere "
     "nothing is written there "
     "unless `auto_export` is true."},
    {"rank", kTop, kRanges, "[]", R"([0, "4-6"])",
     "Ranks to record; `[]`: all. A process without a rank is recorded only "
     "with `[]`."},
    {"step", kTop, kRanges, "[]", R"([0, "100-102"])",
     "Steps to record, counted from 0 in this process; `[]`: all."},
    {"dump_enable", kTop, kSwitch, "", "false",
     "Makes the file a switch: whether recording is on now. While the job runs "
     "it may be edited, with every other field but `dump_path` "
     "([how](pytorch.md#configjson-as-a-switch)). Without it recording is on "
     "and the file is read once."},
    {"async_dump", kTop, kSwitch, "false", "true",
     "As in msprobe. Refused with summary_mode md5, and with task tensor "
     "without a `list`: memory would not be bounded."},
    {"extra_info", kTop, kSwitch, "true", "false",
     "Write stack.json (lines of code) and construct.json (the module of each "
     "call). Of task monitor the default is false."},
    {"auto_export", kTop, kSwitch, "false", "true",
     "With a collector elsewhere: fetch each step into `dump_path` when it has "
     "ended. Without one that is always so."},
    {"precision", kTop, kWord, R"("low")", R"("high")",
     "`high`: Mean and Norm are computed in float32, of integers too.",
     kPrecisions},
    {"risk_level", kTop, kWord, R"("FOCUS")", R"("ALL")",
     "Which API calls: `ALL`; `CORE`, the computing ones such as linear and "
     "matmul; `FOCUS`, all but those that only make or move. With a scope or "
     "list it has no effect.",
     kRiskLevels},
    {"custom_op_namespaces", kTop, kTexts, "", R"(["_C", "vllm"])",
     "Namespaces of `torch.ops` whose operators are recorded as `NS.op`. Left "
     "out or null: `_C_ascend`, and vLLM's own in a program that has imported "
     "it."},
    {"$schema", kTop, kText, "", R"("./config.schema.json")",
     "For editors: the file that `rankprobe config schema` wrote. Not read by "
     "rankprobe."},
    {"statistics", kTop, kObject, "", R"({"list": ["relu"]})",
     "The section of task statistics."},
    {"tensor", kTop, kObject, "", R"({"list": ["relu"]})",
     "The section of task tensor."},
    {"structure", kTop, kObject, "", R"({"list": ["relu"]})",
     "The section of task structure."},
    {"monitor", kTop, kObject, "", R"({"every": 100})",
     "The section of task monitor."},
    {"acc_check", kTop, kAny, "", "{}",
     "Read by [`rankprobe acc_check`](analysis.md#acc_check) alone."},
    {"overflow_check", kTop, kAny, "", "{}", "msprobe's for MindSpore."},
    {"exception_dump", kTop, kAny, "", "{}", "msprobe's for an NPU."},
    {"nan_check", kTop, kAny, "", "{}", "msprobe's for an NPU."},
    {"run_ut", kTop, kAny, "", "{}", "msprobe's older name of acc_check."},
    {"grad_probe", kTop, kAny, "", "{}",
     "Another tool of msprobe; task monitor does this here."},
    {"free_benchmark", kTop, kAny, "", "{}", "Another tool of msprobe."},

    {"scope", kAllTasks, kTexts, "[]",
     R"(["Module.0.Linear.forward.0", "Module.2.Linear.forward.0"])",
     "Two full names, as dump.json has them: the first and the last call to "
     "record, both included. At L0 names of modules, at L1 of API calls, at "
     "mix of either."},
    {"list", kAllTasks, kTexts, "[]", R"(["linear", "layers.0"])",
     "Only calls whose name has one of these as a part; `[]`: all. At mix a "
     "word that fits a module takes all calls inside it. Of task monitor: "
     "parts of names of modules and parameters."},
    {"data_mode", kStatisticsSection | kTensorSection | kStructureSection,
     kWords, R"(["all"])", R"(["forward", "output"])",
     "Which sides of a call; `all` is used alone.", kDataModes},
    {"summary_mode", kAllTasks, kWord, R"("statistics")", R"("md5")",
     "What is kept of a tensor: `statistics`; `md5`, statistics and a CRC32 "
     "of the bytes as msprobe has it; `xor`, a checksum alone.",
     kSummaryModes},
    {"tensor_list", kStatisticsSection, kTexts, "[]", R"(["relu"])",
     "Calls whose tensors are kept completely although the task is statistics: "
     "parts of names."},
    {"extra_statistics", kAllTasks, kWords, "[]", R"(["counts", "std"])",
     "Beside Max, Min, Mean and Norm: `counts` of NaNs, infinities and zeros, "
     "standard deviation (`std`). Not with xor nor task structure.",
     kExtraWords},
    {"slice", kAllTasks, kObjects, "[]",
     R"([{"dim": 0, "begin": 0, "end": 16}])",
     "Of each tensor these rows alone. Not at level debug nor with task "
     "structure."},
    {"request_id", kAllTasks, kText, R"("")", R"("request-1")",
     "Of a server: steps with this request, and its rows of them "
     "([serving](serving.md#one-request)). At most 256 bytes. Not at level "
     "debug nor with task structure."},
    {"device", kAllTasks, kWord, "", R"("host")",
     "For static graphs of MindSpore: checked, with a warning that it has no "
     "effect.",
     kDevices},
    {"file_format", kTensorSection, kWord, "", R"("npy")",
     "For MindSpore at level L2: checked, with a warning that it has no "
     "effect.",
     kFormats},
    {"bench_path", kTensorSection, kText, R"("")", R"("run:good")",
     "A dump directory, or `run:NAME` of the same collector, with whose md5 "
     "each forward is compared; tensors are kept of differences alone. "
     "Requires summary_mode md5 on both sides "
     "([how](formats.md#a-reference-tensorbench_path-and-tensordiff_nums))."},
    {"diff_nums",
     kTensorSection,
     kInteger,
     "1",
     "5",
     "With `bench_path`: the number of differences after which recording ends; "
     "-1: never. 0 is refused.",
     {},
     -1,
     INT64_MAX},
    {"every",
     kMonitorSection,
     kInteger,
     "50",
     "10",
     "Interval in steps, from the first of `step` on.",
     {},
     1,
     1'000'000},
    {"values", kMonitorSection, kWords, "", R"(["training", "optimizer"])",
     "What is recorded ([the words](monitor.md#what-is-recorded)). Left out: "
     "all but `optimizer_state`, which is part of `optimizer`.",
     kMonitored},

    {"dim",
     kSliceItem,
     kInteger,
     "",
     "0",
     "The dimension; negative ones count from the last.",
     {},
     -64,
     63},
    {"begin",
     kSliceItem,
     kInteger,
     "",
     "0",
     "The first row. Needed.",
     {},
     INT64_MIN,
     INT64_MAX},
    {"end",
     kSliceItem,
     kInteger,
     "",
     "16",
     "The row behind the last one. Needed.",
     {},
     INT64_MIN,
     INT64_MAX},
    {"size",
     kSliceItem,
     kInteger,
     "",
     "32",
     "Only of tensors with this number of rows in this dimension; left out: of "
     "all.",
     {},
     0,
     INT64_MAX},
};

}  // namespace

absl::Span<const ConfigField> ConfigFields() { return kFields; }

const ConfigField* FindConfigField(ConfigSection section,
                                   absl::string_view name) {
  for (const ConfigField& field : kFields) {
    if ((field.sections & section) != 0 && name == field.name) return &field;
  }
  return nullptr;
}

std::vector<std::string> ConfigFieldNames(ConfigSection section) {
  std::vector<std::string> names;
  for (const ConfigField& field : kFields) {
    if ((field.sections & section) != 0) names.emplace_back(field.name);
  }
  return names;
}

absl::string_view ConfigSectionName(ConfigSection section) {
  switch (section) {
    case kStatisticsSection:
      return "statistics";
    case kTensorSection:
      return "tensor";
    case kStructureSection:
      return "structure";
    case kMonitorSection:
      return "monitor";
    case kSliceItem:
      return "slice";
    default:
      return "";
  }
}

}  // namespace rankprobe
