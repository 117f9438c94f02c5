// What the analysis verbs share: msprobe's flag spellings, output places,
// progress. Used by main and the verbs, on one thread.
#ifndef RANKPROBE_CLI_ANALYSIS_FLAGS_H_
#define RANKPROBE_CLI_ANALYSIS_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare.h"
#include "cli/verbs.h"
#include "common/file_system.h"

namespace rankprobe {

// The arguments after the program's name. msprobe has flags of one dash and
// several letters (-tp, -lm, ..); for its verbs they become long flags.
std::vector<std::string> ArgumentsOf(int argc, char** argv);

// Makes the directory and returns it without a slash at the end.
absl::StatusOr<std::string> PrepareOutput(FileSystem* file_system,
                                          const std::string& directory);

// Fails when two results of the same second would share a name.
std::string ResultPath(FileSystem* file_system, const std::string& directory,
                       const std::string& stem, const std::string& extension);

// A bar on standard error, when that is a terminal and `json` is off.
analysis::ProgressFn MakeProgress(bool json, const std::string& what);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_ANALYSIS_FLAGS_H_
