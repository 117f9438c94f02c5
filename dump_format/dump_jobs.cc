// SPDX-License-Identifier: Apache-2.0
#include "dump_format/dump_jobs.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/text/ranges_text.h"
#include "dump_format/json_value.h"
#include "dump_format/read_manifest.h"

namespace rankprobe {
namespace {

// "step3/proc4711"
std::string NameInDump(const DumpPlace& place) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(place.directory, '/');
  const size_t count = parts.size();
  return count < 2 ? place.directory
                   : absl::StrCat(parts[count - 2], "/", parts[count - 1]);
}

// Number of the run of each place: 0 for the newest, smaller for older ones.
absl::StatusOr<std::map<std::string, int64_t>> RunsOfPlaces(
    FileSystem* file_system, const std::string& directory) {
  std::map<std::string, int64_t> runs;
  JsonDocument document;
  RP_ASSIGN_OR_RETURN(const bool is_there,
                      ReadManifest(file_system, directory, &document));
  if (!is_there) return runs;
  const auto add = [&runs](const JsonValue& manifest, int64_t run) {
    for (const std::string& place : PlacesOfManifest(manifest))
      runs[place] = run;
  };
  if (const JsonValue* const earlier = document.root().Find("earlier_runs");
      earlier != nullptr) {
    const auto& items = earlier->items();
    // The newest of them first.
    for (size_t i = items.size(); i-- > 0;) {
      // Files of a run with a directory are there, and not in this dump.
      if (items[i].Find("directory") == nullptr)
        add(items[i], -static_cast<int64_t>(i) - 1);
    }
  }
  // Last, so that the newest run owns a place that several runs list.
  add(document.root(), 0);
  return runs;
}

// 4711 for "proc4711"; -1 for a rank's directory.
int64_t PidOf(const DumpPlace& place) {
  absl::string_view name = place.directory;
  name.remove_prefix(name.rfind('/') + 1);
  int64_t pid = -1;
  return absl::ConsumePrefix(&name, "proc") && absl::SimpleAtoi(name, &pid)
             ? pid
             : -1;
}

// The steps in which no process has a rank, with the pids in each.
std::map<int64_t, std::set<int64_t>> PidsOfSteps(const DumpLayout& layout) {
  std::map<int64_t, std::set<int64_t>> pids;
  std::set<int64_t> with_ranks;
  for (const DumpPlace& place : layout.places) {
    const int64_t pid = PidOf(place);
    if (pid < 0) with_ranks.insert(place.step);
    pids[place.step].insert(pid);
  }
  for (const int64_t step : with_ranks) pids.erase(step);
  return pids;
}

class Jobs {
 public:
  Jobs(const DumpLayout& layout,
       const std::map<int64_t, std::set<int64_t>>& pids,
       const std::map<std::string, int64_t>& runs) {
    // Index of a place -> number of its run.
    std::map<size_t, int64_t> places;
    std::map<int64_t, std::map<int64_t, int64_t>> processes;
    std::set<int64_t> side_by_side;
    for (size_t i = 0; i < layout.places.size(); ++i) {
      const DumpPlace& place = layout.places[i];
      if (!pids.contains(place.step)) continue;
      const auto run = runs.find(NameInDump(place));
      is_newest_known_ = is_newest_known_ && run != runs.end();
      const int64_t number = run == runs.end() ? kUnknownRun : run->second;
      places[i] = number;
      if (++processes[number][place.step] > 1) side_by_side.insert(number);
    }
    is_newest_known_ = is_newest_known_ && !side_by_side.contains(0);
    for (const auto& [index, number] : places) {
      const DumpPlace& place = layout.places[index];
      const int64_t pid = PidOf(place);
      // Processes that recorded the same step ran at the same time, so they are
      // different jobs.
      Job& job = jobs_[{number, side_by_side.contains(number) ? pid : -1}];
      job.pids.insert(pid);
      job.steps.insert(place.step);
      job.places.insert(index);
    }
  }

  struct Job {
    std::set<int64_t> pids;
    std::set<int64_t> steps;
    // Indices in the layout.
    std::set<size_t> places;
  };
  std::vector<Job> Ordered() const {
    std::vector<Job> out;
    out.reserve(jobs_.size());
    for (const auto& [key, job] : jobs_) out.push_back(job);
    return out;
  }
  bool is_newest_known() const { return is_newest_known_; }

 private:
  // Sorts before all runs whose order is known.
  static constexpr int64_t kUnknownRun = INT64_MIN;

  // Jobs by the number of the run, and by pid if one run has several jobs.
  std::map<std::pair<int64_t, int64_t>, Job> jobs_;
  bool is_newest_known_ = true;
};

std::string TextOf(const std::vector<Jobs::Job>& jobs) {
  std::vector<std::string> texts;
  texts.reserve(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    texts.push_back(absl::StrCat(
        "job ", i + 1, ", process ", absl::StrJoin(jobs[i].pids, " and "),
        jobs[i].steps.size() == 1 ? " (step " : " (steps ",
        RangesText({jobs[i].steps.begin(), jobs[i].steps.end()}), ")"));
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace

absl::Status ChooseJobOfDump(FileSystem* file_system,
                             std::optional<int64_t> wanted,
                             DumpLayout* layout) {
  const std::map<int64_t, std::set<int64_t>> pids = PidsOfSteps(*layout);
  if (std::none_of(pids.begin(), pids.end(),
                   [](const auto& step) { return step.second.size() > 1; })) {
    if (wanted.value_or(1) == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--job ", *wanted, ": ", layout->path, " is of one job"));
  }
  const size_t slash = layout->path.rfind('/');
  const std::string root =
      layout->kind == DumpLayout::Kind::kSteps ? layout->path
      : slash == std::string::npos             ? "."
                                               : layout->path.substr(0, slash);
  RP_ASSIGN_OR_RETURN(const auto runs, RunsOfPlaces(file_system, root));
  const Jobs found(*layout, pids, runs);
  const std::vector<Jobs::Job> jobs = found.Ordered();
  layout->jobs = absl::StrCat(jobs.size(), " jobs: ", TextOf(jobs));
  const std::string text = absl::StrCat(
      layout->path, " has processes without a rank of ", layout->jobs);
  const DumpPlace& first = layout->places[*jobs.front().places.begin()];
  if (!wanted.has_value() && !found.is_newest_known()) {
    return absl::InvalidArgumentError(
        absl::StrCat(text,
                     ", and nothing says which is the newest; choose one with "
                     "--job N, or name its directory, as ",
                     first.directory));
  }
  const int64_t chosen = wanted.value_or(static_cast<int64_t>(jobs.size()));
  if (chosen < 1 || chosen > static_cast<int64_t>(jobs.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--job ", chosen, ": ", text));
  }
  layout->note = absl::StrCat(
      text, ". Read: job ", chosen,
      wanted.has_value() ? "" : ", the newest; --job N reads another",
      ". Give each job a dump_path of its own");
  const std::set<size_t>& kept = jobs[static_cast<size_t>(chosen) - 1].places;
  std::vector<DumpPlace> places;
  places.reserve(layout->places.size());
  for (size_t i = 0; i < layout->places.size(); ++i) {
    DumpPlace& place = layout->places[i];
    if (pids.contains(place.step)) {
      if (!kept.contains(i)) continue;
      // It is now alone in its step.
      place.process = false;
      place.rank = 0;
    }
    places.push_back(std::move(place));
  }
  layout->places = std::move(places);
  return absl::OkStatus();
}

}  // namespace rankprobe
