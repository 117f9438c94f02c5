#include "common/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/strip.h"

namespace rankprobe {

IntSet::IntSet(std::vector<int64_t> values) : values_(std::move(values)) {
  std::sort(values_.begin(), values_.end());
  values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
}

bool IntSet::Contains(int64_t v) const {
  return values_.empty() ||
         std::binary_search(values_.begin(), values_.end(), v);
}

std::optional<int64_t> IntSet::Max() const {
  if (values_.empty()) return std::nullopt;
  return values_.back();
}

bool Plan::WantsRank(std::optional<int64_t> rank) const {
  if (ranks.all()) return true;
  return rank.has_value() && ranks.Contains(*rank);
}

bool Plan::FinishedBefore(int64_t step) const {
  const std::optional<int64_t> last = steps.Max();
  return last.has_value() && step > *last;
}

bool Plan::HasPayloads() const {
  return task == Task::kTensor ||
         (task == Task::kStatistics && !tensor_list.empty() &&
          level != Level::kDebug);
}

bool Plan::ComparesWithBench() const {
  return task == Task::kTensor && level != Level::kDebug &&
         summary_mode == SummaryMode::kMd5 && !bench_path.empty();
}

std::string Plan::BenchRun() const {
  absl::string_view path = bench_path;
  return absl::ConsumePrefix(&path, "run:") ? std::string(path) : "";
}

absl::string_view TaskName(Task task) {
  switch (task) {
    case Task::kStatistics:
      return "statistics";
    case Task::kTensor:
      return "tensor";
    case Task::kStructure:
      return "structure";
  }
  return "";
}

absl::string_view LevelName(Level level) {
  switch (level) {
    case Level::kL0:
      return "L0";
    case Level::kL1:
      return "L1";
    case Level::kMix:
      return "mix";
    case Level::kDebug:
      return "debug";
  }
  return "";
}

absl::string_view DefaultConfigJson() {
  return R"({"task": "statistics", "dump_path": "./dump_path", "rank": [], "step": [], "level": "L1"})";
}

}  // namespace rankprobe
