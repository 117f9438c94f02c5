// SPDX-License-Identifier: Apache-2.0
// Flags shared by the analysis commands: msprobe's flag spellings, output
// directories, progress. Used by main and the verbs, on one thread.
#ifndef RANKPROBE_CLI_FLAGS_ANALYSIS_FLAGS_H_
#define RANKPROBE_CLI_FLAGS_ANALYSIS_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "analysis/compare/compare.h"
#include "analysis/compare/mapping_files.h"
#include "cli/output/output.h"
#include "common/io/file_system.h"

namespace rankprobe {

// Returns the arguments after the program's name. For msprobe's verbs, its
// flags with one dash and several letters (-tp, -lm, ..) are replaced by long
// flags.
std::vector<std::string> ArgumentsOf(int argc, char** argv);

// Returns a file system that reads by the permission rule
// (dump_format/input_files.h) and prints warnings on standard error.
std::unique_ptr<FileSystem> OpenInputs(bool force);

// Adds --force to a verb that reads dumps.
void AddForce(CLI::App* verb, bool* force);

// Adds --job to a verb that reads one dump or run, and --job and
// --reference-job to one that compares two.
void AddJob(CLI::App* verb, std::optional<int64_t>* job);
void AddJobs(CLI::App* verb, std::optional<int64_t>* job,
             std::optional<int64_t>* reference_job);

// Adds the dump that a verb reads, and the dump that it is compared with. Each
// can be given as a positional argument, as the documents show, or by the flag
// that other verbs and msprobe use. `text` describes the accepted values.
CLI::Option* AddTarget(CLI::App* verb, std::string* path,
                       const std::string& text);
CLI::Option* AddReference(CLI::App* verb, std::string* path,
                          const std::string& text);
// Adds the same for a verb that reads one directory: -i, --input_path.
CLI::Option* AddInput(CLI::App* verb, const std::string& place,
                      std::string* path, const std::string& text);

// Adds -lm, which may be given without a file for matching by scope alone.
// Check the returned option to see whether it was given.
CLI::Option* AddLayerMapping(CLI::App* verb, std::string* file);

// Adds -am to a verb that matches calls of two dumps.
void AddApiMapping(CLI::App* verb, std::string* file);

// Like analysis::ReadMappings, but prints the warnings on standard error.
absl::StatusOr<analysis::MatchOptions> ReadMappingFiles(
    FileSystem* file_system, const analysis::MappingFiles& files);

// The directory that a verb writes into. The destructor removes directories
// that it created if they are empty, so a verb that fails leaves no empty
// directory. It outlives everything that writes there.
class OutputDirectory {
 public:
  // Returns INVALID_ARGUMENT if the directory cannot be created.
  static absl::StatusOr<OutputDirectory> Make(FileSystem* file_system,
                                              const std::string& directory);
  OutputDirectory(OutputDirectory&&) = default;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  ~OutputDirectory();

  // Without a trailing slash.
  const std::string& path() const { return path_; }

 private:
  OutputDirectory() = default;

  std::string path_;
  // The created directories, innermost first.
  std::vector<std::string> made_;
};

// Returns an unused path; the second result of one second is named `stem`_2.
std::string ResultPath(FileSystem* file_system, const std::string& directory,
                       const std::string& stem, const std::string& extension);

// Returns ALREADY_EXISTS if `path` exists.
absl::Status WriteNewFile(FileSystem* file_system, const std::string& path,
                          absl::string_view text);

// Adapts Progress to analyses that report progress to a function.
analysis::ProgressFn ToFunction(std::shared_ptr<Progress> progress);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_ANALYSIS_FLAGS_H_
