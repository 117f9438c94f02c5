// SPDX-License-Identifier: Apache-2.0
// config_check. Python determines the content of a pack.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/run_card/config_pack.h"
#include "analysis/run_card/run_card.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/client/python_worker.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "cli/output/run_card_text.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {
namespace {

struct ConfigCheckFlags {
  std::string target;
  std::string reference;
  // Of a pack, which is to be made where this option is there.
  const CLI::Option* dump = nullptr;
  std::string output;
  std::vector<std::string> scripts;
  bool all = false;
  bool force = false;
  std::optional<int64_t> job, reference_job;
};

absl::Status MakePack(const ConfigCheckFlags& flags, int* exit_code) {
  std::vector<std::string> words = {"--output", flags.output, "--"};
  // -d without a value is an empty word.
  for (const std::string& script : flags.scripts) {
    if (!script.empty()) words.push_back(script);
  }
  RP_ASSIGN_OR_RETURN(
      const auto worker,
      PythonWorker::Start("rankprobe.config_pack", words,
                          "config_check -d needs Python with rankprobe",
                          PythonWorker::Input::kOurs));
  RP_ASSIGN_OR_RETURN(*exit_code, worker->Wait());
  return absl::OkStatus();
}

absl::StatusOr<v1::RunCardReport> CompareDumps(const Globals& globals,
                                               const ConfigCheckFlags& flags,
                                               FileSystem* file_system) {
  RP_ASSIGN_OR_RETURN(const DumpInput target_input,
                      DumpInput::Open(file_system, globals, flags.target,
                                      {.payloads = false, .job = flags.job}));
  RP_ASSIGN_OR_RETURN(
      const DumpInput reference_input,
      DumpInput::Open(file_system, globals, flags.reference,
                      {.payloads = false, .job = flags.reference_job}));
  RP_ASSIGN_OR_RETURN(const DumpLayout target, target_input.Find());
  RP_ASSIGN_OR_RETURN(const DumpLayout reference, reference_input.Find());
  PrintNote(target);
  PrintNote(reference);
  return analysis::CompareRunCards(file_system, target, reference);
}

absl::Status ConfigCheck(const Globals& globals, const ConfigCheckFlags& flags,
                         int* exit_code) {
  if (flags.dump->count() > 0) {
    if (!flags.target.empty())
      return absl::InvalidArgumentError("-d makes a pack and compares nothing");
    return MakePack(flags, exit_code);
  }
  if (flags.target.empty() || flags.reference.empty())
    return absl::InvalidArgumentError(
        "name two dumps or two packs, or give -d");
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  const bool packs = analysis::IsConfigPack(flags.target);
  if (packs != analysis::IsConfigPack(flags.reference)) {
    return absl::InvalidArgumentError(absl::StrCat(
        packs ? flags.target : flags.reference,
        ": a pack of msprobe config_check is compared with another pack, not "
        "with a dump"));
  }
  absl::StatusOr<v1::RunCardReport> report;
  if (packs) {
    report = analysis::CompareConfigPacks(file_system.get(), flags.target,
                                          flags.reference);
  } else {
    report = CompareDumps(globals, flags, file_system.get());
  }
  RP_RETURN_IF_ERROR(report.status());
  if (!report->differences().empty() || !report->unseen().empty())
    *exit_code = kPartial;
  if (globals.json) {
    PrintJson(ToJson(*report));
  } else {
    PrintRunCards(*report, flags.all);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterConfigCheckCommand(const Registry& to) {
  const auto [check, flags] = to.Add<ConfigCheckFlags>(
      "config_check",
      "say whether two dumps are of the same experiment: weights, "
      "batches, random states, settings, versions",
      ConfigCheck);
  AddTarget(check, &flags->target,
            "the dump in question, or a pack of msprobe (.zip)");
  AddReference(check, &flags->reference, "what to compare it with");
  CLI::Option* const dump =
      check
          ->add_option("-d,--dump", flags->scripts,
                       "make a pack as msprobe's: packages, environment, and "
                       "the settings in these scripts (.sh) and files (.yaml)")
          ->expected(0, -1)
          ->type_name("FILE");
  flags->dump = dump;
  flags->output = "./config_check_pack.zip";
  check
      ->add_option("-o,--output", flags->output,
                   "the pack; default ./config_check_pack.zip")
      ->needs(dump);
  check->add_flag("--all", flags->all,
                  "print every difference, not the first of each section");
  AddForce(check, &flags->force);
  AddJobs(check, &flags->job, &flags->reference_job);
}

}  // namespace rankprobe
