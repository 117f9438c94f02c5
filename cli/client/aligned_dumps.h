// SPDX-License-Identifier: Apache-2.0
// Two dumps aligned by rules (--rules), in a temporary directory that is
// deleted with the object. Not thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_ALIGNED_DUMPS_H_
#define RANKPROBE_CLI_CLIENT_ALIGNED_DUMPS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "analysis/align/align.h"
#include "common/io/file_system.h"
#include "common/io/scratch_directory.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

struct AlignFlags {
  std::string rules;
  analysis::AlignOptions options;
};

// Adds --rules, --request and --reference_request.
void AddAlignFlags(CLI::App* verb, AlignFlags* flags);

// Prints one line for people: the request, the numbers of steps and rows, and
// what was left out.
void PrintAligned(std::FILE* out, const analysis::AlignReport& report);

class AlignedDumps {
 public:
  static absl::StatusOr<AlignedDumps> Make(FileSystem* file_system,
                                           const AlignFlags& flags,
                                           const DumpLayout& target,
                                           const DumpLayout& reference);

  std::string target() const { return scratch_.path() + "/target"; }
  std::string reference() const { return scratch_.path() + "/reference"; }
  const analysis::AlignReport& report() const { return report_; }

 private:
  explicit AlignedDumps(ScratchDirectory scratch)
      : scratch_(std::move(scratch)) {}

  ScratchDirectory scratch_;
  analysis::AlignReport report_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_ALIGNED_DUMPS_H_
