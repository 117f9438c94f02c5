// SPDX-License-Identifier: Apache-2.0
#include "cli/client/dump_input.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/client/run_jobs.h"
#include "cli/flags/ranges.h"
#include "cli/output/export_receiver.h"
#include "cli/output/given_names.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/ranges_text.h"

namespace rankprobe {
namespace {

// By step, the directories of processes without a rank that are read.
using ProcessesOfSteps = std::map<int64_t, std::set<std::string>>;

std::set<std::string> ProcessesOf(const RunJob& job) {
  std::set<std::string> out;
  for (const std::string& place : job.places) {
    if (!absl::StartsWith(place, "rank")) out.insert(place);
  }
  return out;
}

// An export contains each rank's newest record of a step, so the steps of a job
// that a later one recorded again are removed. Returns FAILED_PRECONDITION if
// none is left, or if one of them was requested by its number.
absl::Status LeaveOutReplaced(const std::vector<RunJob>& jobs, int64_t wanted,
                              bool by_number, v1::ExportRequest* request) {
  const RunJob& job = jobs[static_cast<size_t>(wanted - 1)];
  std::vector<int64_t> kept, replaced;
  for (const int64_t step : request->steps()) {
    const bool is_again = std::any_of(
        jobs.begin() + wanted, jobs.end(), [&](const RunJob& later) {
          return job.steps.contains(step) && later.steps.contains(step) &&
                 std::any_of(job.places.begin(), job.places.end(),
                             [&](const std::string& place) {
                               return absl::StartsWith(place, "rank") &&
                                      later.places.contains(place);
                             });
        });
    (is_again ? replaced : kept).push_back(step);
  }
  if (replaced.empty()) return absl::OkStatus();
  const std::string why = absl::StrCat(
      "a later job recorded ", replaced.size() == 1 ? "step " : "steps ",
      RangesText(replaced), " of job ", wanted,
      " again, and only the newest record of a rank can be read");
  if (by_number || kept.empty()) return absl::FailedPreconditionError(why);
  Print(stderr, "rankprobe: %s: they are left out.\n", why);
  request->mutable_steps()->Assign(kept.begin(), kept.end());
  return absl::OkStatus();
}

// If several jobs used the name, selects the steps of the newest: steps that it
// did not reach belong to another training. Processes without a rank cannot be
// requested separately: returns those to read, or nothing if all are read.
absl::StatusOr<ProcessesOfSteps> ChooseStepsOfJob(const Client& client,
                                                  const std::string& run,
                                                  std::optional<int64_t> wanted,
                                                  v1::ExportRequest* request) {
  RP_ASSIGN_OR_RETURN(const std::vector<RunJob> jobs, ReadJobs(client, run));
  const bool has_number = wanted.has_value();
  // By step, the newest job that has it.
  ProcessesOfSteps kept;
  for (const int64_t step : request->steps()) {
    for (size_t i = jobs.size(); i-- > 0;) {
      if (!jobs[i].steps.contains(step)) continue;
      kept[step] = ProcessesOf(jobs[i]);
      if (!wanted.has_value()) wanted = static_cast<int64_t>(i) + 1;
      break;
    }
  }
  RP_ASSIGN_OR_RETURN(const JudgedJob judged,
                      ChooseJob(run, jobs, wanted, /*verb=*/""));
  if (!judged.only.has_value()) return ProcessesOfSteps();
  const std::set<std::string> processes = ProcessesOf(*judged.only);
  // The steps of a rank were requested by number; the export has the newest of
  // each.
  if (request->steps().empty() || !processes.empty()) {
    for (const std::string& note : judged.notes)
      Print(stderr, "rankprobe: %s.\n", note);
  }
  const bool all_steps = request->steps().empty();
  if (all_steps) {
    request->mutable_steps()->Assign(judged.only->steps.begin(),
                                     judged.only->steps.end());
  }
  if (all_steps || has_number) {
    kept.clear();
    for (const int64_t step : request->steps()) kept[step] = processes;
  }
  // Otherwise an older job with more ranks would add the missing ones.
  for (const std::string& place : judged.only->places) {
    int64_t rank = 0;
    if (all_steps && processes.empty() &&
        absl::SimpleAtoi(place.substr(4), &rank))
      request->add_ranks(rank);
  }
  if (has_number) {
    RP_RETURN_IF_ERROR(
        LeaveOutReplaced(jobs, *wanted, /*by_number=*/!all_steps, request));
  }
  std::erase_if(kept, [](const auto& step) { return step.second.empty(); });
  return kept;
}

// Deletes from an export the processes without a rank that are not in `kept`.
absl::Status DeleteOtherProcesses(FileSystem* file_system,
                                  const std::string& directory,
                                  const ProcessesOfSteps& kept) {
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> steps,
                      file_system->List(directory));
  for (const std::string& step : steps) {
    int64_t number = 0;
    if (!absl::StartsWith(step, "step") ||
        !absl::SimpleAtoi(step.substr(4), &number))
      continue;
    const auto of_step = kept.find(number);
    if (of_step == kept.end()) continue;
    const std::string path = absl::StrCat(directory, "/", step);
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> places,
                        file_system->List(path));
    size_t left = places.size();
    for (const std::string& place : places) {
      if (!absl::StartsWith(place, "proc") || of_step->second.contains(place))
        continue;
      RP_RETURN_IF_ERROR(
          file_system->DeleteTree(absl::StrCat(path, "/", place)));
      --left;
    }
    if (left == 0) RP_RETURN_IF_ERROR(file_system->DeleteTree(path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DumpInput> DumpInput::Open(FileSystem* file_system,
                                          const Globals& globals,
                                          const std::string& name,
                                          const Wanted& wanted) {
  absl::string_view rest = name;
  DumpInput input(file_system, name);
  if (!absl::ConsumePrefix(&rest, "run:")) {
    input.job_ = wanted.job;
    return input;
  }
  // The last @ separates the step, because the name of a run may contain one.
  const size_t at = rest.rfind('@');
  const std::string run(rest.substr(0, at));
  const std::string step(at == absl::string_view::npos ? absl::string_view()
                                                       : rest.substr(at + 1));
  if (run.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": expected run:NAME, run:NAME@STEP or run:NAME@STEP/rankR"));
  }
  const absl::Status status = input.Download(globals, run, step, wanted);
  // Otherwise the @ is part of the run's name.
  if (at != absl::string_view::npos &&
      (absl::IsNotFound(status) || absl::IsInvalidArgument(status))) {
    input.scratch_.reset();
    const absl::Status whole =
        input.Download(globals, std::string(rest), /*place=*/"", wanted);
    if (absl::IsNotFound(whole)) return status;
    RP_RETURN_IF_ERROR(whole);
    return input;
  }
  RP_RETURN_IF_ERROR(status);
  return input;
}

absl::Status DumpInput::Download(const Globals& globals, const std::string& run,
                                 const std::string& place,
                                 const Wanted& wanted) {
  RP_ASSIGN_OR_RETURN(ScratchDirectory scratch,
                      ScratchDirectory::Make(file_system_));
  scratch_.emplace(std::move(scratch));
  const std::string directory = scratch_->path() + "/dump";
  if (wanted.is_for_output)
    NameTemporary(directory, absl::StrCat("run:", run), GivenForm::kRun);
  v1::ExportRequest request;
  request.set_takes_files(true);
  request.set_run(run);
  request.set_without_payloads(!wanted.payloads);
  request.set_request(wanted.request);
  // One of the forms "3", "0-4", "3/rank1".
  const size_t slash = place.find("/rank");
  const std::string step = place.substr(0, slash);
  const std::string rank =
      slash == std::string::npos ? "" : place.substr(slash + 5);
  if (slash != std::string::npos && rank.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("run:", run, "@", place, ": which rank?"));
  }
  if (slash != std::string::npos) {
    RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                        ParseRanges(absl::StrCat("run:", run, "@"), rank));
    request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }
  if (!step.empty()) {
    RP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                        ParseRanges(absl::StrCat("run:", run, "@"), step));
    request.mutable_steps()->Assign(steps.begin(), steps.end());
  }
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(const ProcessesOfSteps processes,
                      ChooseStepsOfJob(client, run, wanted.job, &request));
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<ExportFiles> files,
                      ExportFiles::Open(file_system_, directory,
                                        StagedTree::Leftovers::kDelete));
  Progress progress(Progress::StyleFor(globals.json, Progress::Style::kNone),
                    absl::StrCat("run:", run));
  const ReceivedExport received =
      files->Receive(client, request, [&](const v1::ExportEvent& event) {
        if (event.has_progress()) {
          progress.Show(event.progress().files_done(),
                        event.progress().files_total());
        }
        return wanted.cancelled && wanted.cancelled()
                   ? absl::CancelledError("the caller has cancelled it")
                   : absl::OkStatus();
      });
  RP_RETURN_IF_ERROR(received.status());
  RP_RETURN_IF_ERROR(files->Finish(run));
  if (!processes.empty()) {
    RP_RETURN_IF_ERROR(
        DeleteOtherProcesses(file_system_, directory, processes));
  }
  // run:NAME@STEP is accepted wherever a step directory is. For a range of
  // steps, which has no directory of that name, the path is the complete tree.
  const std::string one_step = absl::StrCat(directory, "/step", step);
  const std::string one_rank = absl::StrCat(one_step, "/rank", rank);
  const bool by_rank = !rank.empty() && wanted.rank_directory;
  path_ = by_rank && file_system_->Exists(one_rank)         ? one_rank
          : !step.empty() && file_system_->Exists(one_step) ? one_step
                                                            : directory;
  return absl::OkStatus();
}

void PrintNote(const DumpLayout& dump) {
  if (!dump.note.empty()) Print(stderr, "rankprobe: %s.\n", dump.note);
}

}  // namespace rankprobe
