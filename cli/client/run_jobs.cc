// SPDX-License-Identifier: Apache-2.0
#include "cli/client/run_jobs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/ranges_text.h"

namespace rankprobe {
namespace {

// One process, from its start to its end.
struct Life {
  uint64_t incarnation = 0;
  bool has_rank = false;
  std::string place, job, host;
  int64_t pid = 0;
  std::set<int64_t> steps;
  int64_t first_ns = INT64_MAX, last_ns = 0;
};

std::vector<Life> LivesOf(const std::vector<v1::StepInfo>& steps) {
  std::map<uint64_t, Life> lives;
  for (const v1::StepInfo& step : steps) {
    if (step.deleted()) continue;
    Life& life = lives[step.incarnation()];
    life.incarnation = step.incarnation();
    life.has_rank = step.has_rank();
    life.place = step.has_rank() ? absl::StrCat("rank", step.rank())
                                 : absl::StrCat("proc", step.pid());
    life.job = step.job();
    life.host = step.host();
    life.pid = step.pid();
    life.steps.insert(step.step());
    life.first_ns = std::min(life.first_ns, step.updated_unix_ns());
    life.last_ns = std::max(life.last_ns, step.updated_unix_ns());
  }
  std::vector<Life> out;
  out.reserve(lives.size());
  for (auto& [incarnation, life] : lives) out.push_back(std::move(life));
  std::stable_sort(out.begin(), out.end(), [](const Life& a, const Life& b) {
    return a.first_ns < b.first_ns;
  });
  return out;
}

class Grouping {
 public:
  void Add(Life life) {
    const size_t at = FindJob(life);
    if (at == jobs_.size()) {
      Group& group = jobs_.emplace_back();
      group.job.pid = life.pid;
      group.job.host = life.host;
      group.job.first_ns = life.first_ns;
    }
    Group& group = jobs_[at];
    group.has_ranks = group.has_ranks || life.has_rank;
    if (!life.job.empty()) group.names.emplace(life.host, life.job);
    group.job.incarnations.insert(life.incarnation);
    group.job.places.insert(life.place);
    group.job.steps.merge(life.steps);
    group.job.last_ns = std::max(group.job.last_ns, life.last_ns);
  }
  std::vector<RunJob> Take() && {
    std::vector<RunJob> out;
    out.reserve(jobs_.size());
    for (Group& group : jobs_) out.push_back(std::move(group.job));
    return out;
  }

 private:
  struct Group {
    RunJob job;
    bool has_ranks = false;
    // The names by host, because each host starts its part of a job by itself.
    std::set<std::pair<std::string, std::string>> names;
  };

  size_t FindJob(const Life& life) const {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].names.contains({life.host, life.job})) return i;
    }
    if (jobs_.empty()) return 0;
    const Group& last = jobs_.back();
    return Fits(life, last) ? jobs_.size() - 1 : jobs_.size();
  }

  static bool Fits(const Life& life, const Group& last) {
    // If another process of the job already has this rank, the rank belongs to
    // another job. Each rank may have been started by its own `rankprobe run`.
    if (life.has_rank) return !last.job.places.contains(life.place);
    const bool has_another_name =
        !life.job.empty() &&
        std::any_of(last.names.begin(), last.names.end(),
                    [&](const auto& name) { return name.first == life.host; });
    const bool is_beside = life.first_ns <= last.job.last_ns;
    // A process without a rank belongs to a job with ranks if it ran at the
    // same time or was started under the same name.
    return last.has_ranks ? is_beside || !has_another_name
                          : is_beside && !has_another_name;
  }

  std::vector<Group> jobs_;
};

std::string TimeText(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(unix_ns),
                          absl::LocalTimeZone());
}

std::string StepsOf(const RunJob& job) {
  return RangesText({job.steps.begin(), job.steps.end()});
}

bool HasRanks(const RunJob& job) {
  return std::any_of(
      job.places.begin(), job.places.end(),
      [](const std::string& place) { return absl::StartsWith(place, "rank"); });
}

// Whether `after` continues `before`: a continued training either has ranks
// again or has none again.
bool GoesOn(const RunJob& before, const RunJob& after) {
  return HasRanks(before) == HasRanks(after) &&
         *after.steps.begin() > *before.steps.rbegin();
}

// Whether the collector's own counts show only one job. A long run of many
// ranks has millions of rank-steps, which should not be listed for that.
absl::StatusOr<bool> HasOneJob(const Client& client, const std::string& run) {
  v1::ListRunsRequest request;
  for (;;) {
    RP_ASSIGN_OR_RETURN(const v1::ListRunsResponse response,
                        client.Ask(&ArchiveStub::ListRuns, request));
    for (const v1::RunInfo& info : response.runs()) {
      if (info.run() != run) continue;
      // If a process without a rank ran together with others, only its times
      // show which job it belongs to.
      const bool is_alone = info.ranks() == 1;
      return info.jobs() == 1 &&
             info.processes_without_rank() <= (is_alone ? 1U : 0U);
    }
    // The run does not exist, or the collector returns the same page again.
    if (!response.truncated() || response.runs().empty() ||
        response.runs().rbegin()->run() <= request.after_run())
      return false;
    request.set_after_run(response.runs().rbegin()->run());
  }
}

}  // namespace

std::vector<RunJob> JobsOf(const std::vector<v1::StepInfo>& steps) {
  Grouping grouping;
  for (Life& life : LivesOf(steps)) grouping.Add(std::move(life));
  return std::move(grouping).Take();
}

std::string JobsText(const std::vector<RunJob>& jobs) {
  std::vector<std::string> texts;
  texts.reserve(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const RunJob& job = jobs[i];
    texts.push_back(absl::StrCat(
        "job ", i + 1, ", process ", job.pid, " on ", job.host,
        job.places.size() > 1
            ? absl::StrCat(" and ", job.places.size() - 1, " more")
            : "",
        " (steps ", StepsOf(job), ", until ", TimeText(job.last_ns), ")"));
  }
  return absl::StrJoin(texts, "; ");
}

absl::StatusOr<JudgedJob> ChooseJob(const std::string& run,
                                    const std::vector<RunJob>& jobs,
                                    std::optional<int64_t> wanted,
                                    const std::string& verb) {
  JudgedJob out;
  const size_t count = std::max<size_t>(1, jobs.size());
  if (wanted.has_value() &&
      (*wanted < 1 || *wanted > static_cast<int64_t>(count))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--job ", *wanted, ": run ", run, " has ", Counted(count, "job"),
        jobs.empty() ? "" : absl::StrCat(": ", JobsText(jobs))));
  }
  if (jobs.size() < 2) return out;
  const size_t chosen =
      wanted.has_value() ? static_cast<size_t>(*wanted) - 1 : jobs.size() - 1;
  out.notes.push_back(absl::StrCat("Run ", run, " has steps of ", jobs.size(),
                                   " jobs: ", JobsText(jobs)));
  bool each_goes_on = !wanted.has_value();
  for (size_t i = 1; i < jobs.size(); ++i) {
    each_goes_on = each_goes_on && GoesOn(jobs[i - 1], jobs[i]);
  }
  if (each_goes_on) {
    out.notes.push_back(
        "Judged together: each begins after the last step of the previous one");
    return out;
  }
  out.only = jobs[chosen];
  out.notes.push_back(absl::StrCat(
      "Judged: job ", chosen + 1,
      chosen + 1 == jobs.size() ? ", the newest" : "",
      ". Give each job a name of its own: `rankprobe run --run NAME` "
      "or RANKPROBE_RUN"));
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i == chosen) continue;
    out.unjudged.emplace_back(
        absl::StrCat("steps ", StepsOf(jobs[i]), " of job ", i + 1),
        absl::StrCat("rankprobe ", verb, " --job ", i + 1));
  }
  return out;
}

absl::StatusOr<std::vector<RunJob>> ReadJobs(const Client& client,
                                             const std::string& run) {
  RP_ASSIGN_OR_RETURN(const bool one, HasOneJob(client, run));
  if (one) return std::vector<RunJob>();
  auto steps = client.ListSteps(run);
  if (absl::IsNotFound(steps.status())) return std::vector<RunJob>();
  RP_RETURN_IF_ERROR(steps.status());
  return JobsOf(*steps);
}

}  // namespace rankprobe
