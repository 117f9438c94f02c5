// SPDX-License-Identifier: Apache-2.0
#include "cli/client/joined_runs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"

namespace rankprobe {

void AddLayoutFlags(CLI::App* verb, LayoutFlags* flags) {
  verb->add_option(
          "--layout", flags->layout,
          "auto: put the ranks of each run together first, by recorded "
          "placements, so that runs of different layouts compare; "
          "ranks: rank by rank")
      ->check(CLI::IsMember({"auto", "ranks"}));
  verb->add_flag(
      "--split_batch", flags->options.split_batch,
      "with --layout auto: ranks of different data hold parts of one "
      "batch, on dimension 0 and in the order of ranks");
}

absl::Status CheckLayoutFlags(const LayoutFlags& flags,
                              absl::string_view other) {
  if (!flags.join() && flags.options.split_batch) {
    return absl::InvalidArgumentError(
        "--split_batch says how ranks are put together; give --layout auto, "
        "too");
  }
  if (flags.join() && !other.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        other,
        " does not go with --layout auto, which makes dumps of its own"));
  }
  return absl::OkStatus();
}

absl::StatusOr<JoinedRuns> JoinedRuns::Make(FileSystem* file_system,
                                            const LayoutFlags& flags,
                                            const std::string& target,
                                            const std::string& reference,
                                            std::FILE* out) {
  RP_ASSIGN_OR_RETURN(ScratchDirectory scratch,
                      ScratchDirectory::Make(file_system));
  JoinedRuns joined(std::move(scratch));
  joined.target_ = target;
  joined.reference_ = reference;
  RP_ASSIGN_OR_RETURN(
      const analysis::LayoutReport report,
      analysis::JoinDumps(file_system, target, reference, flags.options,
                          joined.scratch_.path()));
  for (const std::string& text : analysis::LayoutTexts(report)) {
    Print(out, "%s\n", text);
  }
  return joined;
}

std::string JoinedRuns::Named(absl::string_view text) const {
  return absl::StrReplaceAll(text,
                             {{target(), target_}, {reference(), reference_}});
}

}  // namespace rankprobe
