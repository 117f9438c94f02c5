// SPDX-License-Identifier: Apache-2.0
// acc_check: finds the dump and starts a Python worker, which runs PyTorch's
// kernels.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/client/python_worker.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {
namespace {

// Returns the dump.json of a run of the archive or of a directory, which must
// have one step and rank.
absl::StatusOr<std::string> OnlyDump(const std::string& name,
                                     const DumpInput& input) {
  RP_ASSIGN_OR_RETURN(const DumpLayout layout, input.Find());
  PrintNote(layout);
  if (layout.places.size() == 1) {
    return layout.places[0].directory + "/dump.json";
  }
  const bool is_run = absl::StartsWith(name, "run:");
  if (layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": has several steps; name one: ", name,
                     is_run ? "@" : "/step", layout.Steps()[0]));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": has ", layout.places.size(), " ranks; ",
      is_run ? "export it and name" : "name", " the dump.json of one of them"));
}

// Removes --job N or --job=N from the words; all other words are passed to the
// worker.
absl::StatusOr<std::optional<int64_t>> TakeJob(
    std::vector<std::string>* words) {
  std::optional<int64_t> job;
  for (size_t i = 0; i < words->size();) {
    absl::string_view number = (*words)[i];
    if (!absl::ConsumePrefix(&number, "--job") ||
        (!number.empty() && number[0] != '=')) {
      ++i;
      continue;
    }
    size_t taken = 1;
    if (!absl::ConsumePrefix(&number, "=") && i + 1 < words->size()) {
      number = (*words)[i + 1];
      taken = 2;
    }
    int64_t value = 0;
    if (!absl::SimpleAtoi(number, &value) || value < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("--job: \"", number,
                       "\" is not the number of a job, which begin at 1"));
    job = value;
    words->erase(words->begin() + static_cast<int64_t>(i),
                 words->begin() + static_cast<int64_t>(i + taken));
  }
  return job;
}

absl::Status AccCheck(const Globals& globals,
                      std::vector<std::string> arguments, int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  DumpInput::Wanted wanted;
  RP_ASSIGN_OR_RETURN(wanted.job, TakeJob(&arguments));
  std::vector<std::string> words;
  std::vector<DumpInput> inputs;  // kept until the worker has ended
  // The dump may be a positional argument, as in other verbs.
  if (!arguments.empty() && !absl::StartsWith(arguments[0], "-"))
    words.emplace_back("-api_info");
  for (const std::string& argument : arguments) {
    const bool is_dump = !words.empty() && (words.back() == "-api_info" ||
                                            words.back() == "--api_info_file");
    if (absl::StartsWith(argument, "run:") ||
        (is_dump && file_system->List(argument).ok())) {
      RP_ASSIGN_OR_RETURN(
          DumpInput input,
          DumpInput::Open(file_system.get(), globals, argument, wanted));
      RP_ASSIGN_OR_RETURN(words.emplace_back(), OnlyDump(argument, input));
      inputs.push_back(std::move(input));
      continue;
    }
    // The worker's spellings of the flags.
    words.push_back(argument == "--result_csv_path"   ? "-csv_path"
                    : argument == "--save_error_data" ? "-save_error_data"
                    : argument == "--config_path"     ? "-config"
                                                      : argument);
  }
  if (wanted.job.has_value() && inputs.empty())
    return absl::InvalidArgumentError(
        "--job chooses among the jobs of a run or directory, and no run:NAME "
        "or directory was given");
  if (globals.json) words.emplace_back("--json");
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<PythonWorker> worker,
                      PythonWorker::Start("rankprobe.acc_check", words,
                                          "acc_check needs Python with torch",
                                          PythonWorker::Input::kOurs));
  RP_ASSIGN_OR_RETURN(*exit_code, worker->Wait());
  return absl::OkStatus();
}

}  // namespace

void RegisterAccCheckCommand(const Registry& to) {
  const auto [acc_check, self] = to.Add<const CLI::App*>(
      "acc_check",
      "run the API calls of a dump again, in their own precision and a higher "
      "one\nNeeds Python with torch. -api_info takes run:NAME[@STEP] too, with "
      "--collector\nbefore the verb, and a directory; of several jobs in it "
      "--job N "
      "reads one.\nHelp of the worker: acc_check -- -h",
      [](const Globals& globals, const CLI::App* verb, int* exit_code) {
        return AccCheck(globals, verb->remaining(), exit_code);
      });
  *self = acc_check;
  acc_check->prefix_command();
}

}  // namespace rankprobe
