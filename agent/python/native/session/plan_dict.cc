// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/session/plan_dict.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "agent/runtime/reference/reference_dump.h"
#include "common/config/api_list.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

// First and last of each interval.
std::vector<std::pair<int64_t, int64_t>> Intervals(const IntSet& set) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const IntInterval& i : set.intervals())
    out.emplace_back(i.first, i.last);
  return out;
}

const char* SummaryModeName(SummaryMode mode) {
  return mode == SummaryMode::kMd5   ? "md5"
         : mode == SummaryMode::kXor ? "xor"
                                     : "statistics";
}

const char* RiskLevelName(RiskLevel level) {
  return level == RiskLevel::kAll    ? "ALL"
         : level == RiskLevel::kCore ? "CORE"
                                     : "FOCUS";
}

}  // namespace

py::dict PlanDict(const Plan& plan) {
  py::dict out;
  out["task"] = std::string(TaskName(plan.task));
  out["level"] = std::string(LevelName(plan.level));
  out["records_apis"] = plan.RecordsApis();
  out["records_modules"] = plan.RecordsModules();
  out["records_saved"] = plan.RecordsSaved();
  if (plan.Monitors()) {
    py::dict monitor;
    monitor["every"] = plan.monitor.every;
    monitor["weight_gradients"] = plan.monitor.weight_gradients;
    monitor["parameters"] = plan.monitor.parameters;
    monitor["optimizer"] = plan.monitor.optimizer;
    monitor["updates"] = plan.monitor.updates;
    monitor["training"] = plan.monitor.training;
    monitor["communication"] = plan.monitor.communication;
    out["monitor"] = monitor;
  }
  out["dump_path"] = plan.dump_path;
  out["ranks"] = Intervals(plan.ranks);
  out["steps"] = Intervals(plan.steps);
  if (const std::optional<int64_t> last = plan.steps.Max(); last.has_value())
    out["last_step"] = *last;
  out["scope"] = plan.scope;
  out["list"] = plan.list;
  if (plan.custom_op_namespaces.has_value())
    out["custom_op_namespaces"] = *plan.custom_op_namespaces;
  out["tensor_list"] = plan.tensor_list;
  out["forward"] = plan.data_mode.forward;
  out["backward"] = plan.data_mode.backward;
  out["parameters_grad"] = plan.data_mode.parameters_grad;
  out["async_dump"] = plan.async_dump;
  out["summary_mode"] = SummaryModeName(plan.summary_mode);
  out["precision"] = plan.precision == Precision::kHigh ? "high" : "low";
  std::vector<std::string> extra;
  for (const absl::string_view word : plan.extra_statistics.Words())
    extra.emplace_back(word);
  out["extra_statistics"] = std::move(extra);
  out["risk_level"] = RiskLevelName(plan.risk_level);
  out["bench_path"] = plan.bench_path;
  out["diff_nums"] = plan.diff_nums;
  out["extra_info"] = plan.extra_info;
  out["auto_export"] = plan.auto_export;
  out["api_list"] = plan.api_list;
  out["request_id"] = plan.request_id;
  if (plan.dump_enable.has_value()) out["dump_enable"] = *plan.dump_enable;
  return out;
}

py::dict ParseConfigDict(const std::string& config_json) {
  auto config = ParseConfig(config_json, {});
  absl::Status status = config.status();
  // Reported before anything is started, as the recorder would report it.
  if (status.ok())
    status = CheckReferencePath(config->plan, NewPosixFileSystem().get());
  if (!status.ok()) throw py::value_error(std::string(status.message()));
  py::dict out;
  out["plan"] = PlanDict(config->plan);
  out["warnings"] = config->warnings;
  return out;
}

std::vector<std::string> CheckConfigFile(const std::string& file,
                                         const std::string& text) {
  const auto config = ParseConfigFile(file, text, UnknownKeys::kRefuse);
  if (!config.ok())
    throw py::value_error(std::string(config.status().message()));
  return config->warnings;
}

py::dict ParseApiListDict(const std::string& text) {
  const absl::StatusOr<ApiList> list = ParseApiList(text);
  if (!list.ok()) throw py::value_error(std::string(list.status().message()));
  py::dict out;
  for (const auto& [prefix, names] : *list) out[py::str(prefix)] = names;
  return out;
}

}  // namespace rankprobe
