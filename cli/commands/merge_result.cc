// SPDX-License-Identifier: Apache-2.0
// merge_result.
#include "analysis/merge_result/merge_result.h"

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

struct MergeFlags {
  std::string input;
  std::string output;
  std::string config;
  bool csv = false;
  bool force = false;
};

v1::MergeReport ToMessage(const analysis::MergedTables& merged,
                          const std::string& file) {
  v1::MergeReport report;
  report.set_file(file);
  for (const analysis::RankValues& rank : merged.ranks) {
    report.add_ranks(rank.rank);
  }
  report.mutable_indices()->Assign(merged.indices.begin(),
                                   merged.indices.end());
  report.set_rows(static_cast<int64_t>(merged.names.size()));
  report.mutable_left_out()->Assign(merged.left_out.begin(),
                                    merged.left_out.end());
  return report;
}

absl::Status MergeResult(const Globals& globals, const MergeFlags& flags,
                         int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  std::string input = flags.input;
  while (input.size() > 1 && input.back() == '/') input.pop_back();
  RP_ASSIGN_OR_RETURN(
      const analysis::MergeConfig config,
      analysis::ReadMergeConfig(file_system.get(), flags.config));
  RP_ASSIGN_OR_RETURN(const analysis::MergedTables merged,
                      analysis::MergeTables(file_system.get(), input, config));
  for (const std::string& text : merged.warnings) {
    Print(stderr, "rankprobe: warning: %s\n", text);
  }
  RP_ASSIGN_OR_RETURN(const OutputDirectory output,
                      OutputDirectory::Make(file_system.get(), flags.output));
  const std::string file =
      ResultPath(file_system.get(), output.path(),
                 absl::StrCat("multi_ranks_compare_merge_",
                              TimestampText(SystemClock().Now())),
                 flags.csv ? ".csv" : ".xlsx");
  RP_RETURN_IF_ERROR(
      flags.csv ? analysis::WriteMergedCsv(file_system.get(), file, merged)
                : analysis::WriteMergedXlsx(file_system.get(), file, merged));
  // Not all that was there is in it.
  if (!merged.left_out.empty()) *exit_code = kPartial;
  if (globals.json) {
    PrintJson(ToJson(ToMessage(merged, file)));
    return absl::OkStatus();
  }
  Print(stdout, "%s: %d %s, %s, %s\n", file, merged.indices.size(),
        merged.indices.size() == 1 ? "index" : "indices",
        Counted(merged.ranks.size(), "rank"),
        Counted(merged.names.size(), "row"));
  for (const std::string& text : merged.left_out) {
    Print(stdout, "left out: %s\n", text);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterMergeResultCommand(CLI::App* app, Globals* globals,
                                ParsedCommand* command) {
  CLI::App* const verb = app->add_subcommand(
      "merge_result",
      "merge the compare tables of many ranks into one workbook: a sheet "
      "for each index, a column for each rank");
  AddGlobals(verb, globals);
  auto flags = std::make_shared<MergeFlags>();
  verb->add_option("-i,--input_dir,tables", flags->input,
                   "directory of compare_result_rank{R}_{time}.xlsx, or .csv "
                   "where there is no .xlsx")
      ->required();
  verb->add_option("-o,--output_dir", flags->output,
                   "directory for multi_ranks_compare_merge_{time}.xlsx")
      ->required();
  verb->add_option("--config-path", flags->config,
                   "-config: yaml, api: [NAME ..], compare_index: [COLUMN ..] "
                   "(none: every one)")
      ->required();
  verb->add_flag("--csv", flags->csv,
                 "one csv, whose first column is the index, in place of a "
                 "workbook");
  AddForce(verb, &flags->force);
  verb->callback([command, flags] {
    command->run = [flags](const Globals& g, int* code) {
      return MergeResult(g, *flags, code);
    };
  });
}

}  // namespace rankprobe
