// SPDX-License-Identifier: Apache-2.0
// config.json -> Plan. Grammar and rules: docs/formats.md, "config.json".
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/base/limits.h"
#include "common/config/config_fields.h"
#include "common/config/config_reader.h"
#include "common/config/json_place.h"
#include "common/config/monitor_section.h"
#include "common/config/plan.h"
#include "common/config/section_values.h"
#include "common/records/entry_names.h"
#include "common/text/nearest.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kKernelWords =
    "max, min, mean, l2norm, count, negative zero count, zero count, "
    "positive zero count, nan count, negative inf count, positive inf count, "
    "hash, md5";

struct Refused {
  const char* value;
  const char* reason;
};
// Words that are legal in msprobe but have a meaning only elsewhere.
constexpr Refused kRefusedTasks[] = {
    {"acc_check",
     "statistics, tensor, structure or monitor for capture (acc_check is an "
     "offline check of dumped calls)"},
    {"overflow_check",
     "statistics, tensor, structure or monitor (overflow_check is for "
     "MindSpore static graphs only; `rankprobe overflow_check` reads dumps)"},
    {"exception_dump",
     "statistics, tensor, structure or monitor (exception_dump is for "
     "MindSpore at level L2, on an NPU)"},
    {"nan_check",
     "statistics, tensor, structure or monitor (nan_check needs an NPU)"},
    {"diff_check",
     "statistics, tensor, structure or monitor (diff_check needs an NPU)"},
    {"kernel_dump",
     "statistics, tensor, structure or monitor (kernel_dump needs an NPU)"},
};

class Parser {
 public:
  Parser(const rapidjson::Document& document, const ConfigOverrides& overrides)
      : top_(&document, "", &faults_, kTop), overrides_(overrides) {}

  // Without faults and warnings, the config is correct.
  Plan Parse() {
    ParseTask();
    ParseLevel();
    ChooseLevelOfMonitor();
    ParseTop();
    ParseSection();
    if (plan_.Monitors()) {
      // Stacks and the tree are the same in each step.
      if (!top_.Has("extra_info")) plan_.extra_info = false;
      ParseMonitorSection(top_.Get("monitor"), &faults_, &plan_);
    }
    CheckCombinations();
    AddUnknown(top_, kTop);
    return std::move(plan_);
  }
  const ConfigFaults& faults() const { return faults_; }
  const std::vector<ConfigFaults::Line>& unknown() const { return unknown_; }
  const std::vector<ConfigFaults::Line>& warnings() const { return warnings_; }

 private:
  void ParseTask() {
    std::optional<std::string> text = top_.String("task");
    if (overrides_.task.has_value()) text = overrides_.task;
    if (!text.has_value()) return;
    const absl::Span<const char* const> tasks = Words("task");
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (*text == tasks[i]) {
        plan_.task = static_cast<Task>(i);
        return;
      }
    }
    for (const Refused& refused : kRefusedTasks) {
      if (*text == refused.value)
        return top_.Fault("task", *text, refused.reason);
    }
    top_.Fault("task", absl::StrCat("\"", *text, "\""),
               absl::StrCat("one of ", absl::StrJoin(tasks, ", ")));
  }

  void ParseLevel() {
    std::optional<std::string> text = top_.String("level");
    if (overrides_.level.has_value()) text = overrides_.level;
    if (!text.has_value()) return;
    const absl::Span<const char* const> levels = Words("level");
    for (size_t i = 0; i < levels.size(); ++i) {
      if (*text == levels[i]) {
        plan_.level = static_cast<Level>(i);
        return;
      }
    }
    if (*text == "L2") {
      const rapidjson::Value* tensor = top_.Get("tensor");
      const bool one_name = tensor != nullptr && tensor->IsObject() &&
                            tensor->HasMember("list") &&
                            (*tensor)["list"].IsArray() &&
                            (*tensor)["list"].Size() == 1;
      return top_.Fault(
          "level", "L2",
          absl::StrCat(
              "one of ", absl::StrJoin(levels, ", "), " (L2 dumps NPU kernels",
              one_name ? ""
                       : ", and needs task tensor with one API name in list",
              ")"));
    }
    top_.Fault("level", absl::StrCat("\"", *text, "\""),
               absl::StrCat("one of ", absl::StrJoin(levels, ", ")));
  }

  void ParseTop() {
    const std::optional<std::string> path = overrides_.dump_path.has_value()
                                                ? overrides_.dump_path
                                                : top_.String("dump_path");
    const bool had_path =
        overrides_.dump_path.has_value() || top_.Has("dump_path");
    if (!had_path) {
      faults_.AddText("dump_path is missing: add \"dump_path\": \"./dump\"");
    } else if (path.has_value() && path->empty()) {
      top_.Fault("dump_path", "\"\"",
                 "a directory, from the file or the constructor");
    }
    plan_.dump_path = path.value_or("");
    plan_.ranks = top_.Ranges("rank");
    if (overrides_.step_json.has_value()) {
      rapidjson::Document steps;
      const std::string wrapped =
          absl::StrCat("{\"step\":", *overrides_.step_json, "}");
      if (const absl::Status status = ParseConfigDocument(wrapped, &steps);
          !status.ok()) {
        top_.Fault("step", *overrides_.step_json,
                   "a list of integers and ranges");
      } else {
        plan_.steps = ConfigReader(&steps, "", &faults_).Ranges("step");
      }
    } else {
      plan_.steps = top_.Ranges("step");
    }
    plan_.async_dump = top_.Bool("async_dump").value_or(false);
    plan_.extra_info = top_.Bool("extra_info").value_or(true);
    plan_.auto_export = top_.Bool("auto_export").value_or(false);
    plan_.dump_enable = top_.Bool("dump_enable");
    if (const auto i = top_.OneOf("precision"))
      plan_.precision = static_cast<Precision>(*i);
    if (const auto i = top_.OneOf("risk_level"))
      plan_.risk_level = static_cast<RiskLevel>(*i);
    if (const rapidjson::Value* named = top_.Get("custom_op_namespaces");
        named != nullptr && !named->IsNull()) {
      plan_.custom_op_namespaces = top_.StringList("custom_op_namespaces");
    }
    if (top_.Has("$schema")) top_.String("$schema");
  }

  void ParseSection() {
    const std::string name(TaskName(plan_.task));
    const rapidjson::Value* section = top_.Get(name.c_str());
    if (section == nullptr) return;
    if (!section->IsObject())
      return top_.Fault(name.c_str(), JsonText(*section), "an object");
    section_ = SectionOf(plan_.task);
    ConfigReader reader(section, name + ".", &faults_, section_);
    ParseScope(&reader);
    plan_.list = reader.StringList("list");
    CheckPatterns(&reader, "list", plan_.list);
    if (plan_.task == Task::kStatistics) {
      plan_.tensor_list = reader.StringList("tensor_list");
      CheckPatterns(&reader, "tensor_list", plan_.tensor_list);
    }
    if (!plan_.Monitors()) ParseDataMode(&reader, &plan_.data_mode);
    ParseSummaryMode(&reader);
    ParseExtraStatistics(&reader);
    ParseSlices(&reader, &faults_, &plan_.slices);
    ParseRequest(&reader);
    // A field of MindSpore: checked, without effect here.
    if (reader.OneOf("device"))
      Ignored(name, "device", "for MindSpore static graphs only");
    if (plan_.task == Task::kTensor) {
      if (reader.OneOf("file_format"))
        Ignored(name, "file_format", "for MindSpore L2 only");
      plan_.bench_path = reader.String("bench_path").value_or("");
      constexpr size_t kMaxRunName = 255;
      if (absl::StartsWith(plan_.bench_path, "run:") &&
          (plan_.ReferenceRun().empty() ||
           plan_.ReferenceRun().size() > kMaxRunName)) {
        reader.Fault("bench_path", absl::StrCat("\"", plan_.bench_path, "\""),
                     "a dump directory or run:NAME, 1 to 255 bytes of name");
      }
      if (const rapidjson::Value* v = reader.Get("diff_nums")) {
        if (v->IsInt64() && (v->GetInt64() == -1 || v->GetInt64() > 0)) {
          plan_.diff_nums = v->GetInt64();
        } else {
          reader.Fault("diff_nums", JsonText(*v),
                       "-1 (no limit) or a positive integer");
        }
      }
    }
    AddUnknown(reader, section_);
  }

  absl::Span<const char* const> Words(absl::string_view field) const {
    return FindConfigField(kTop, field)->words;
  }

  static ConfigSection SectionOf(Task task) {
    switch (task) {
      case Task::kStatistics:
        return kStatisticsSection;
      case Task::kTensor:
        return kTensorSection;
      case Task::kStructure:
        return kStructureSection;
      case Task::kMonitor:
        return kMonitorSection;
    }
    return kStatisticsSection;
  }

  void AddUnknown(const ConfigReader& reader, ConfigSection section) {
    const std::vector<std::string> known = ConfigFieldNames(section);
    for (const std::string& name : reader.UnknownNames()) {
      // Skips a key that has a fault with its own reason.
      if (absl::c_any_of(faults_.lines(), [&](const ConfigFaults::Line& line) {
            return line.field == name;
          }))
        continue;
      absl::string_view key = name;
      if (section != kTop)
        key.remove_prefix(ConfigSectionName(section).size() + 1);
      unknown_.push_back(
          {name, VisibleText(absl::StrCat("unknown key ", name,
                                          DidYouMean(key, known)))});
    }
  }

  void Warn(std::string field, absl::string_view text) {
    warnings_.push_back({std::move(field), VisibleText(text)});
  }

  void ParseSummaryMode(ConfigReader* reader) {
    const rapidjson::Value* const v = reader->Get("summary_mode");
    if (v == nullptr || !v->IsArray()) {
      if (const auto i = reader->OneOf("summary_mode"))
        plan_.summary_mode = static_cast<SummaryMode>(*i);
      return;
    }
    const std::vector<std::string> all = absl::StrSplit(kKernelWords, ", ");
    for (const std::string& word : reader->StringList("summary_mode"))
      if (!absl::c_linear_search(all, word))
        reader->Fault("summary_mode", word, kKernelWords);
    reader->Fault("summary_mode", "a list",
                  "statistics, md5 or xor (lists are for kernels of MindSpore "
                  "static graphs, on an NPU)");
  }

  void Ignored(absl::string_view section, absl::string_view key,
               absl::string_view reason) {
    const std::string field = absl::StrCat(section, ".", key);
    Warn(field, absl::StrCat(field, " is ", reason, " and has no effect"));
  }

  // Patterns select nothing here: one warning for each field.
  void CheckPatterns(ConfigReader* reader, const char* name,
                     absl::Span<const std::string> items) {
    if (!HasNamePatterns(reader, name, items)) return;
    const std::string field = reader->FieldName(name);
    Warn(field, absl::StrCat(field,
                             ": name-regex is for static graphs of MindSpore "
                             "and selects no call of PyTorch"));
  }

  void ChooseLevelOfMonitor() {
    if (!plan_.Monitors() || plan_.level == Level::kL0) return;
    if (overrides_.level.has_value() || top_.Has("level")) {
      Warn("level", absl::StrCat("task monitor has no level ",
                                 LevelName(plan_.level), "; level L0 is used"));
    }
    plan_.level = Level::kL0;
  }

  void ParseScope(ConfigReader* reader) {
    std::vector<std::string> scope = reader->StringList("scope");
    if (scope.empty()) return;
    const char* legal =
        plan_.level == Level::kL0   ? "exactly two full module names"
        : plan_.level == Level::kL1 ? "exactly two full API names"
                                    : "exactly two full API or module names";
    bool good = scope.size() == 2;
    for (const std::string& name : scope) {
      const EntryKind kind = ClassifyEntry(name);
      if (plan_.level == Level::kL0) good = good && kind == EntryKind::kModule;
      if (plan_.level == Level::kL1) good = good && kind == EntryKind::kApi;
      good = good && (kind == EntryKind::kApi || kind == EntryKind::kModule);
    }
    if (!good)
      return reader->Fault(
          "scope", absl::StrCat("[", absl::StrJoin(scope, ", "), "]"), legal);
    plan_.scope = std::move(scope);
  }

  void ParseExtraStatistics(ConfigReader* reader) {
    constexpr char kName[] = "extra_statistics";
    for (const std::string& word : reader->StringList(kName)) {
      if (plan_.extra_statistics.AddWord(word)) continue;
      constexpr size_t kShown = 120;
      reader->Fault(kName, absl::StrCat("\"", word.substr(0, kShown), "\""),
                    absl::StrCat("a list of ",
                                 absl::StrJoin(ExtraStatisticWords(), ", ")));
    }
    if (plan_.extra_statistics.empty()) return;
    if (plan_.summary_mode != SummaryMode::kXor && plan_.RecordsValues()) {
      return;
    }
    Warn(reader->FieldName(kName),
         absl::StrCat(
             reader->FieldName(kName), " has no effect: ",
             !plan_.RecordsValues() ? "task structure" : "summary_mode xor",
             " has no statistics"));
    plan_.extra_statistics = {};
  }

  void ParseRequest(ConfigReader* reader) {
    plan_.request_id = reader->String("request_id").value_or("");
    if (plan_.request_id.size() > kMaxRequestIdBytes) {
      reader->Fault("request_id", "a long text",
                    absl::StrCat("at most ", kMaxRequestIdBytes, " bytes"));
    }
    const bool whole = !plan_.RecordsValues() || plan_.RecordsSaved();
    if (!whole) return;
    const char* why =
        " has no effect: of task statistics or tensor at level L0, L1 or mix";
    if (!plan_.request_id.empty())
      Warn(reader->FieldName("request_id"),
           absl::StrCat(reader->FieldName("request_id"), why));
    if (!plan_.slices.empty())
      Warn(reader->FieldName("slice"),
           absl::StrCat(reader->FieldName("slice"), why));
    plan_.request_id.clear();
    plan_.slices.clear();
  }

  void CheckCombinations() {
    if (plan_.task == Task::kStructure && plan_.level != Level::kL0 &&
        plan_.level != Level::kMix) {
      Warn("level", absl::StrCat("task structure has no level ",
                                 std::string(LevelName(plan_.level)),
                                 "; level mix is used"));
      plan_.level = Level::kMix;
    }
    if (plan_.async_dump && plan_.summary_mode == SummaryMode::kMd5 &&
        plan_.task != Task::kStructure) {
      top_.Fault("async_dump", "true", "false when summary_mode is md5");
    }
    if (plan_.async_dump && plan_.task == Task::kTensor &&
        plan_.level != Level::kDebug && plan_.list.empty()) {
      top_.Fault(
          "async_dump", "true",
          "false for task tensor without a list (memory would not be bounded)");
    }
    if (plan_.level == Level::kDebug) {
      if (!plan_.tensor_list.empty())
        Warn("statistics.tensor_list",
             "tensor_list has no effect at level debug");
      plan_.tensor_list.clear();
      if (plan_.async_dump) plan_.list.clear();
    }
    if (!plan_.bench_path.empty() && plan_.summary_mode != SummaryMode::kMd5) {
      Warn("tensor.bench_path",
           "tensor.bench_path needs summary_mode md5 on both sides; nothing "
           "will be compared");
    }
  }

  ConfigFaults faults_;
  std::vector<ConfigFaults::Line> unknown_, warnings_;
  ConfigSection section_ = kNoSection;
  ConfigReader top_;
  const ConfigOverrides& overrides_;
  Plan plan_;
};

// Prefix "config.json:3:5: " for the lines of a file; only for the first ones,
// since each requires a pass over the text.
class Places {
 public:
  Places(absl::string_view file, absl::string_view json)
      : file_(file), json_(json) {}

  std::string Line(const ConfigFaults::Line& line) {
    constexpr int kMaxWalks = 64;
    std::optional<TextPlace> place;
    if (!line.field.empty() && walks_++ < kMaxWalks)
      place = PlaceOfKey(json_, line.field);
    return place.has_value() ? absl::StrCat(file_, ":", place->line, ":",
                                            place->column, ": ", line.text)
                             : absl::StrCat(file_, ": ", line.text);
  }

 private:
  const absl::string_view file_;
  const absl::string_view json_;
  int walks_ = 0;
};

}  // namespace

absl::StatusOr<ConfigResult> ParseConfig(absl::string_view json,
                                         const ConfigOverrides& overrides) {
  rapidjson::Document document;
  if (const absl::Status status = ParseConfigDocument(json, &document);
      !status.ok())
    return status;
  Parser parser(document, overrides);
  ConfigResult result{parser.Parse(), {}};
  if (!parser.faults().empty()) return parser.faults().ToStatus();
  for (const auto* lines : {&parser.unknown(), &parser.warnings()}) {
    for (const ConfigFaults::Line& line : *lines)
      result.warnings.push_back(line.text);
  }
  return result;
}

absl::StatusOr<ConfigResult> ParseConfigFile(absl::string_view file,
                                             absl::string_view json,
                                             UnknownKeys unknown) {
  rapidjson::Document document;
  if (const absl::Status status = ParseConfigDocument(json, &document);
      !status.ok()) {
    if (!document.HasParseError()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": ", status.message()));
    }
    const TextPlace place =
        PlaceOfByte(json, std::min(document.GetErrorOffset(), json.size()));
    // The message ends with the same place in words.
    const absl::string_view message = status.message();
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":", place.line, ":", place.column, ": ",
                     message.substr(0, message.rfind(" (line "))));
  }
  const ConfigOverrides none;
  Parser parser(document, none);
  ConfigResult result{parser.Parse(), {}};
  Places places(file, json);
  std::vector<std::string> faults;
  for (const ConfigFaults::Line& line : parser.faults().lines())
    faults.push_back(places.Line(line));
  for (const ConfigFaults::Line& line : parser.unknown()) {
    (unknown == UnknownKeys::kRefuse ? faults : result.warnings)
        .push_back(places.Line(line));
  }
  for (const ConfigFaults::Line& line : parser.warnings())
    result.warnings.push_back(places.Line(line));
  if (!faults.empty())
    return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  return result;
}

}  // namespace rankprobe
