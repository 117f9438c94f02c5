// SPDX-License-Identifier: Apache-2.0
#include "common/config/plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe {

namespace {

std::vector<IntInterval> Singles(const std::vector<int64_t>& values) {
  std::vector<IntInterval> out;
  out.reserve(values.size());
  for (const int64_t value : values) out.push_back({value, value});
  return out;
}

}  // namespace

IntSet::IntSet(const std::vector<int64_t>& values)
    : IntSet(OfIntervals(Singles(values))) {}

IntSet IntSet::OfIntervals(std::vector<IntInterval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const IntInterval& a, const IntInterval& b) {
              return a.first < b.first;
            });
  size_t kept = 0;
  for (size_t i = 1; i < intervals.size(); ++i) {
    IntInterval& newest = intervals[kept];
    // Written so that the largest integer does not overflow.
    if (intervals[i].first <= newest.last ||
        intervals[i].first - 1 == newest.last) {
      newest.last = std::max(newest.last, intervals[i].last);
    } else {
      intervals[++kept] = intervals[i];
    }
  }
  if (!intervals.empty()) intervals.resize(kept + 1);
  IntSet set;
  set.intervals_ = std::move(intervals);
  return set;
}

bool IntSet::Contains(int64_t v) const {
  if (intervals_.empty()) return true;
  const auto after = std::upper_bound(
      intervals_.begin(), intervals_.end(), v,
      [](int64_t value, const IntInterval& i) { return value < i.first; });
  return after != intervals_.begin() && v <= std::prev(after)->last;
}

std::optional<int64_t> IntSet::Max() const {
  if (intervals_.empty()) return std::nullopt;
  return intervals_.back().last;
}

uint64_t IntSet::size() const {
  uint64_t count = 0;
  for (const IntInterval& i : intervals_)
    count += static_cast<uint64_t>(i.last) - static_cast<uint64_t>(i.first) + 1;
  return count;
}

std::string IntSet::Text() const {
  constexpr size_t kMaxTextBytes = 200;
  std::string text;
  for (const IntInterval& i : intervals_) {
    if (text.size() > kMaxTextBytes) return absl::StrCat(text, ",..");
    absl::StrAppend(&text, text.empty() ? "" : ",", i.first);
    if (i.last > i.first) absl::StrAppend(&text, "-", i.last);
  }
  return text;
}

bool Plan::WantsRank(std::optional<int64_t> rank) const {
  if (ranks.all()) return true;
  return rank.has_value() && ranks.Contains(*rank);
}

bool Plan::WantsStep(int64_t step) const {
  if (!steps.Contains(step)) return false;
  const int64_t first = steps.all() ? 0 : steps.intervals().front().first;
  return monitor.every <= 1 || (step - first) % monitor.every == 0;
}

bool Plan::FinishedBefore(int64_t step) const {
  const std::optional<int64_t> last = steps.Max();
  return last.has_value() && step > *last;
}

bool Plan::HasPayloads() const {
  return KeepsAllTensors() ||
         (task == Task::kStatistics && !tensor_list.empty() && !RecordsSaved());
}

bool Plan::ComparesWithReference() const {
  return KeepsAllTensors() && !RecordsSaved() &&
         summary_mode == SummaryMode::kMd5 && !bench_path.empty();
}

std::string Plan::ReferenceRun() const {
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
    case Task::kMonitor:
      return "monitor";
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
