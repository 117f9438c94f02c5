// SPDX-License-Identifier: Apache-2.0
// Two runs of different layouts as dumps of one rank each (--layout), in a
// temporary directory that is deleted with the object. Not thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_JOINED_RUNS_H_
#define RANKPROBE_CLI_CLIENT_JOINED_RUNS_H_

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "analysis/layout/joined_dumps.h"
#include "common/io/file_system.h"
#include "common/io/scratch_directory.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

struct LayoutFlags {
  std::string layout = "ranks";  // auto, or the path of a layout file
  analysis::LayoutOptions options;

  bool join() const { return layout != "ranks"; }
};

// Adds --layout and --split_batch.
void AddLayoutFlags(CLI::App* verb, LayoutFlags* flags);

// Returns INVALID_ARGUMENT if `other`, a flag that was given (empty if none),
// cannot be combined with --layout, or if --split_batch was given without
// --layout.
absl::Status CheckLayoutFlags(const LayoutFlags& flags,
                              absl::string_view other);

// Prints one line on standard error if the two runs have different numbers of
// ranks and are compared rank by rank.
void HintAtLayout(const LayoutFlags& flags, const DumpLayout& target,
                  const DumpLayout& reference);

class JoinedRuns {
 public:
  // Joins the runs and prints a summary to `out`.
  static absl::StatusOr<JoinedRuns> Make(FileSystem* file_system,
                                         const LayoutFlags& flags,
                                         const DumpLayout& target,
                                         const DumpLayout& reference,
                                         std::FILE* out);

  std::string target() const { return scratch_.path() + "/target"; }
  std::string reference() const { return scratch_.path() + "/reference"; }

 private:
  explicit JoinedRuns(ScratchDirectory scratch)
      : scratch_(std::move(scratch)) {}

  ScratchDirectory scratch_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_JOINED_RUNS_H_
