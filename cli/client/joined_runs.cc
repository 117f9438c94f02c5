// SPDX-License-Identifier: Apache-2.0
#include "cli/client/joined_runs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/output/given_names.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

void AddLayoutFlags(CLI::App* verb, LayoutFlags* flags) {
  verb->add_option(
      "--layout", flags->layout,
      "auto: merge the ranks of each run first, by recorded placements, so "
      "that runs of different layouts can be compared; FILE: by the placements "
      "in this file; ranks: rank by rank");
  verb->add_flag(
      "--split_batch", flags->options.split_batch,
      "with --layout auto or FILE: ranks of different data hold parts of one "
      "batch, on dimension 0 and in the order of ranks");
}

absl::Status CheckLayoutFlags(const LayoutFlags& flags,
                              absl::string_view other) {
  if (flags.layout.empty()) {
    return absl::InvalidArgumentError(
        "--layout: expected auto, ranks or a layout file");
  }
  if (!flags.join() && flags.options.split_batch) {
    return absl::InvalidArgumentError(
        "--split_batch says how ranks are merged; give --layout auto, too");
  }
  if (flags.join() && !other.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(other, " does not go with --layout ", flags.layout,
                     ", which makes dumps of its own"));
  }
  return absl::OkStatus();
}

absl::StatusOr<JoinedRuns> JoinedRuns::Make(FileSystem* file_system,
                                            const LayoutFlags& flags,
                                            const DumpLayout& target,
                                            const DumpLayout& reference,
                                            std::FILE* out) {
  analysis::LayoutOptions options = flags.options;
  if (flags.layout != "auto") {
    if (!file_system->Exists(flags.layout)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layout ", flags.layout,
                       ": is neither a file (docs/formats.md, Layout files) "
                       "nor auto or ranks"));
    }
    RP_ASSIGN_OR_RETURN(options.file,
                        analysis::ReadLayoutFile(file_system, flags.layout));
  }
  RP_ASSIGN_OR_RETURN(ScratchDirectory scratch,
                      ScratchDirectory::Make(file_system));
  JoinedRuns joined(std::move(scratch));
  for (const auto& [ours, given] :
       {std::pair(joined.target(), &target),
        std::pair(joined.reference(), &reference)}) {
    NameTemporary(ours, given->path,
                  given->kind == DumpLayout::Kind::kSteps
                      ? GivenForm::kSteps
                      : GivenForm::kOneStep);
  }
  RP_ASSIGN_OR_RETURN(const analysis::LayoutReport report,
                      analysis::JoinDumps(file_system, target, reference,
                                          options, joined.scratch_.path()));
  for (const std::string& text : analysis::LayoutTexts(report)) {
    Print(out, "%s\n", text);
  }
  return joined;
}

void HintAtLayout(const LayoutFlags& flags, const DumpLayout& target,
                  const DumpLayout& reference) {
  if (flags.join() || target.Ranks().size() == reference.Ranks().size()) return;
  Print(stderr,
        "rankprobe: the runs have %d and %d ranks and are compared rank by "
        "rank; --layout auto (or a layout file) merges the ranks of each run "
        "first\n",
        target.Ranks().size(), reference.Ranks().size());
}

}  // namespace rankprobe
