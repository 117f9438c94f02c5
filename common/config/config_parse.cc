// SPDX-License-Identifier: Apache-2.0
// config.json -> Plan. Grammar and rules: docs/formats.md, "config.json".
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/limits.h"
#include "common/config/config_reader.h"
#include "common/config/monitor_section.h"
#include "common/config/plan.h"
#include "common/records/entry_names.h"
#include "common/text/visible_text.h"
#include "re2/re2.h"

namespace rankprobe {
namespace {

constexpr std::array kTasks = {"statistics", "tensor", "structure", "monitor"};
constexpr std::array kLevels = {"L0", "L1", "mix", "debug"};
constexpr std::array kPrecisions = {"low", "high"};
constexpr std::array kRiskLevels = {"ALL", "CORE", "FOCUS"};
constexpr std::array kSummaryModes = {"statistics", "md5", "xor"};
constexpr absl::string_view kKernelWords =
    "max, min, mean, l2norm, count, negative zero count, zero count, "
    "positive zero count, nan count, negative inf count, positive inf count, "
    "hash, md5";

struct Refused {
  const char* value;
  const char* reason;
};
// Legal words of msprobe that mean something only elsewhere.
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

// Look-around and back references are legal for MindSpore, unknown to RE2 and
// so taken as they are. Linear in time and bounded in memory: configs come from
// everywhere.
bool IsRegularExpression(absl::string_view pattern) {
  RE2::Options options;
  options.set_log_errors(false);
  constexpr int64_t kMaxMemory = 1 << 16;
  options.set_max_mem(kMaxMemory);
  const RE2 compiled(re2::StringPiece(pattern.data(), pattern.size()), options);
  switch (compiled.error_code()) {
    case RE2::NoError:
    case RE2::ErrorPatternTooLarge:
    case RE2::ErrorBadPerlOp:
      return true;
    case RE2::ErrorBadEscape:
      return compiled.error_arg().size() == 2 &&
             absl::ascii_isdigit(
                 static_cast<unsigned char>(compiled.error_arg()[1]));
    default:
      return false;
  }
}

class Parser {
 public:
  Parser(const rapidjson::Document& document, const ConfigOverrides& overrides)
      : top_(&document, "", &faults_), overrides_(overrides) {}

  absl::StatusOr<ConfigResult> Parse() {
    ParseTask();
    ParseLevel();
    ChooseLevelOfMonitor();
    ParseTop();
    ParseSection();
    if (plan_.Monitors()) {
      // Stacks and the tree of a step are the same in each.
      if (!top_.Has("extra_info")) plan_.extra_info = false;
      ParseMonitorSection(top_.Get("monitor"), &faults_, &plan_);
    }
    CheckCombinations();
    for (const std::string& name : top_.UnknownNames())
      warnings_.push_back(absl::StrCat("unknown key ", name));
    if (!faults_.empty()) return faults_.ToStatus();
    for (std::string& warning : warnings_) warning = VisibleText(warning);
    return ConfigResult{std::move(plan_), std::move(warnings_)};
  }

 private:
  void ParseTask() {
    std::optional<std::string> text = top_.String("task");
    if (overrides_.task.has_value()) text = overrides_.task;
    if (!text.has_value()) return;
    for (size_t i = 0; i < kTasks.size(); ++i) {
      if (*text == kTasks[i]) {
        plan_.task = static_cast<Task>(i);
        return;
      }
    }
    for (const Refused& refused : kRefusedTasks) {
      if (*text == refused.value)
        return top_.Fault("task", *text, refused.reason);
    }
    top_.Fault("task", absl::StrCat("\"", *text, "\""),
               absl::StrCat("one of ", absl::StrJoin(kTasks, ", ")));
  }

  void ParseLevel() {
    std::optional<std::string> text = top_.String("level");
    if (overrides_.level.has_value()) text = overrides_.level;
    if (!text.has_value()) return;
    for (size_t i = 0; i < kLevels.size(); ++i) {
      if (*text == kLevels[i]) {
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
              "one of ", absl::StrJoin(kLevels, ", "), " (L2 dumps NPU kernels",
              one_name ? ""
                       : ", and needs task tensor with one API name in list",
              ")"));
    }
    top_.Fault("level", absl::StrCat("\"", *text, "\""),
               absl::StrCat("one of ", absl::StrJoin(kLevels, ", ")));
  }

  void ParseTop() {
    const std::optional<std::string> path = overrides_.dump_path.has_value()
                                                ? overrides_.dump_path
                                                : top_.String("dump_path");
    const bool had_path =
        overrides_.dump_path.has_value() || top_.Has("dump_path");
    if (!had_path || (path.has_value() && path->empty())) {
      top_.Fault("dump_path", had_path ? "\"\"" : "absent",
                 "a directory, from the file or the constructor");
    }
    top_.Has("dump_path");
    plan_.dump_path = path.value_or("");
    plan_.ranks = top_.Ranges("rank");
    if (overrides_.step_json.has_value()) {
      top_.Has("step");
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
    if (const auto i = top_.OneOf("precision", kPrecisions))
      plan_.precision = static_cast<Precision>(*i);
    if (const auto i = top_.OneOf("risk_level", kRiskLevels))
      plan_.risk_level = static_cast<RiskLevel>(*i);
    if (const rapidjson::Value* named = top_.Get("custom_op_namespaces");
        named != nullptr && !named->IsNull()) {
      plan_.custom_op_namespaces = top_.StringList("custom_op_namespaces");
    }
    // Sections of other tasks may stand in the file; they are not read.
    for (const char* other :
         {"statistics", "tensor", "structure", "monitor", "acc_check",
          "overflow_check", "exception_dump", "nan_check", "run_ut",
          "grad_probe", "free_benchmark"}) {
      top_.Has(other);
    }
  }

  void ParseSection() {
    const std::string name(TaskName(plan_.task));
    const rapidjson::Value* section = top_.Get(name.c_str());
    if (section == nullptr) return;
    if (!section->IsObject())
      return top_.Fault(name.c_str(), JsonText(*section), "an object");
    ConfigReader reader(section, name + ".", &faults_);
    ParseScope(&reader);
    plan_.list = reader.StringList("list");
    CheckPatterns(&reader, "list", plan_.list);
    if (plan_.task == Task::kStatistics) {
      plan_.tensor_list = reader.StringList("tensor_list");
      CheckPatterns(&reader, "tensor_list", plan_.tensor_list);
    }
    ParseDataMode(&reader);
    ParseSummaryMode(&reader);
    ParseExtraStatistics(&reader);
    ParseSlices(&reader);
    ParseRequest(&reader);
    for (const char* name : {"every", "values"}) {
      if (plan_.Monitors()) reader.Has(name);
    }
    // MindSpore's: checked, then without effect here.
    constexpr std::array kDevices = {"host", "device"};
    constexpr std::array kFormats = {"npy", "bin"};
    if (reader.OneOf("device", kDevices))
      Ignored(name, "device", "for MindSpore static graphs only");
    if (plan_.task == Task::kTensor) {
      if (reader.OneOf("file_format", kFormats))
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
    for (const std::string& unknown : reader.UnknownNames()) {
      warnings_.push_back(absl::StrCat("unknown key ", unknown));
    }
  }

  void ParseSummaryMode(ConfigReader* reader) {
    const rapidjson::Value* const v = reader->Get("summary_mode");
    if (v == nullptr || !v->IsArray()) {
      if (const auto i = reader->OneOf("summary_mode", kSummaryModes))
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
    warnings_.push_back(
        absl::StrCat(section, ".", key, " is ", reason, " and has no effect"));
  }

  // name-regex(...) among names: a fault where that is no regular expression,
  // else one warning. They select nothing here and a compilation takes its time,
  // also of the collector's: what comes after the first few is taken as it is.
  void CheckPatterns(ConfigReader* reader, const char* name,
                     absl::Span<const std::string> items) {
    constexpr absl::string_view kBegin = "name-regex(";
    constexpr size_t kShown = 120;
    constexpr size_t kMaxPatternBytes = 1024;
    constexpr size_t kMaxPatterns = 64;
    bool any = false;
    absl::flat_hash_set<absl::string_view> checked;
    for (const std::string& item : items) {
      absl::string_view pattern = item;
      if (!absl::ConsumePrefix(&pattern, kBegin)) continue;
      any = true;
      const bool closed = absl::ConsumeSuffix(&pattern, ")");
      if (pattern.size() > kMaxPatternBytes) {
        reader->Fault(name, item.substr(0, kShown),
                      absl::StrCat("a regular expression of at most ",
                                   kMaxPatternBytes, " bytes"));
      } else if (!closed || (checked.size() < kMaxPatterns &&
                             checked.insert(pattern).second &&
                             !IsRegularExpression(pattern))) {
        reader->Fault(name, item.substr(0, kShown), "a regular expression");
      }
    }
    if (any) {
      warnings_.push_back(absl::StrCat(
          reader->FieldName(name),
          ": name-regex is for static graphs of MindSpore and selects nothing "
          "of PyTorch"));
    }
  }

  void ChooseLevelOfMonitor() {
    if (!plan_.Monitors() || plan_.level == Level::kL0) return;
    if (overrides_.level.has_value() || top_.Has("level")) {
      warnings_.push_back(absl::StrCat("task monitor has no level ",
                                       LevelName(plan_.level),
                                       "; level L0 is used"));
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

  void ParseDataMode(ConfigReader* reader) {
    const std::vector<std::string> modes = reader->StringList("data_mode");
    if (modes.empty()) return;
    constexpr absl::string_view kLegal =
        "at most four of all, forward, backward, input, output, with all alone";
    if (modes.size() > 4)
      return reader->Fault("data_mode", absl::StrJoin(modes, ","), kLegal);
    bool all = false, forward = false, backward = false, input = false,
         output = false;
    for (const std::string& mode : modes) {
      if (mode == "all") {
        all = true;
      } else if (mode == "forward") {
        forward = true;
      } else if (mode == "backward") {
        backward = true;
      } else if (mode == "input") {
        input = true;
      } else if (mode == "output") {
        output = true;
      } else {
        return reader->Fault("data_mode", absl::StrCat("\"", mode, "\""),
                             kLegal);
      }
    }
    if (all) {
      if (modes.size() > 1)
        reader->Fault("data_mode", absl::StrJoin(modes, ","), kLegal);
      return;
    }
    DataMode& mode = plan_.data_mode;
    const bool no_direction = !forward && !backward, no_io = !input && !output;
    mode.forward = forward || no_direction;
    mode.backward = backward || no_direction;
    mode.input = input || no_io;
    mode.output = output || no_io;
    mode.parameters_grad = !(forward && !backward);
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
    warnings_.push_back(absl::StrCat(
        reader->FieldName(kName), " has no effect: ",
        !plan_.RecordsValues() ? "task structure" : "summary_mode xor",
        " has no statistics"));
    plan_.extra_statistics = {};
  }

  void ParseSlices(ConfigReader* reader) {
    const rapidjson::Value* slices = reader->Get("slice");
    if (slices == nullptr) return;
    constexpr absl::string_view kLegal =
        "a list of {dim, begin, end[, size]} with integers";
    if (!slices->IsArray())
      return reader->Fault("slice", JsonText(*slices), kLegal);
    for (const rapidjson::Value& item : slices->GetArray()) {
      if (!item.IsObject()) {
        reader->Fault("slice", JsonText(item), kLegal);
        continue;
      }
      ConfigReader one(&item, reader->FieldName("slice") + ".", &faults_);
      SliceSpec slice;
      const auto dim = one.Int("dim", -64, 63),
                 begin = one.Int("begin", INT64_MIN, INT64_MAX),
                 end = one.Int("end", INT64_MIN, INT64_MAX);
      slice.size = one.Int("size", 0, INT64_MAX);
      for (const char* needed : {"dim", "begin", "end"}) {
        if (!one.Has(needed)) one.Fault(needed, "absent", "an integer");
      }
      if (!dim || !begin || !end) continue;
      slice.dim = *dim;
      slice.begin = *begin;
      slice.end = *end;
      plan_.slices.push_back(slice);
    }
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
      warnings_.push_back(absl::StrCat(reader->FieldName("request_id"), why));
    if (!plan_.slices.empty())
      warnings_.push_back(absl::StrCat(reader->FieldName("slice"), why));
    plan_.request_id.clear();
    plan_.slices.clear();
  }

  void CheckCombinations() {
    if (plan_.task == Task::kStructure && plan_.level != Level::kL0 &&
        plan_.level != Level::kMix) {
      warnings_.push_back(absl::StrCat("task structure has no level ",
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
        warnings_.push_back("tensor_list has no effect at level debug");
      plan_.tensor_list.clear();
      if (plan_.async_dump) plan_.list.clear();
    }
    if (!plan_.bench_path.empty() && plan_.summary_mode != SummaryMode::kMd5) {
      warnings_.push_back(
          "tensor.bench_path needs summary_mode md5 on both sides; nothing "
          "will be compared");
    }
  }

  ConfigFaults faults_;
  std::vector<std::string> warnings_;
  ConfigReader top_;
  const ConfigOverrides& overrides_;
  Plan plan_;
};

}  // namespace

absl::StatusOr<ConfigResult> ParseConfig(absl::string_view json,
                                         const ConfigOverrides& overrides) {
  rapidjson::Document document;
  if (const absl::Status status = ParseConfigDocument(json, &document);
      !status.ok())
    return status;
  return Parser(document, overrides).Parse();
}

}  // namespace rankprobe
