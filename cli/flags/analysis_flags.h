// SPDX-License-Identifier: Apache-2.0
// Flags shared by the analysis commands: msprobe's flag spellings, output
// places, progress. Used by main and the verbs, on one thread.
#ifndef RANKPROBE_CLI_FLAGS_ANALYSIS_FLAGS_H_
#define RANKPROBE_CLI_FLAGS_ANALYSIS_FLAGS_H_

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

// The arguments after the program's name. msprobe has flags of one dash and
// several letters (-tp, -lm, ..); for its verbs they become long flags.
std::vector<std::string> ArgumentsOf(int argc, char** argv);

// Reads by the permission rule (dump_format/input_files.h); its warnings go to
// standard error.
std::unique_ptr<FileSystem> OpenInputs(bool force);

// The flag of the verbs that read dumps.
void AddForce(CLI::App* verb, bool* force);

// --job of the verbs that look at one dump or run, and --job and --reference-job of
// those that compare two.
void AddJob(CLI::App* verb, std::optional<int64_t>* job);
void AddJobs(CLI::App* verb, std::optional<int64_t>* job,
             std::optional<int64_t>* reference_job);

// The dump that a verb looks at, and the one that it is compared with. Each may
// stand by its place, which is what the documents show, or behind the flag that
// other verbs and msprobe's have for it. `text`: what it may be.
CLI::Option* AddTarget(CLI::App* verb, std::string* path,
                       const std::string& text);
CLI::Option* AddReference(CLI::App* verb, std::string* path,
                          const std::string& text);
// The same of a verb that looks at one directory: -i, --input_path.
CLI::Option* AddInput(CLI::App* verb, const std::string& place,
                      std::string* path, const std::string& text);

// -lm, which may stand without a file: by scope alone. So what it was given is
// read where the option that is returned was there.
CLI::Option* AddLayerMapping(CLI::App* verb, std::string* file);

// -am of the verbs that lay calls beside each other.
void AddApiMapping(CLI::App* verb, std::string* file);

// As analysis::ReadMappings; its warnings go to standard error.
absl::StatusOr<analysis::MatchOptions> ReadMappingFiles(
    FileSystem* file_system, const analysis::MappingFiles& files);

// The directory that a verb writes into. The destructor removes directories
// that it made if they are empty, so a verb that fails leaves no empty
// directory. It outlives everything that writes there.
class OutputDirectory {
 public:
  // INVALID_ARGUMENT when it cannot be made.
  static absl::StatusOr<OutputDirectory> Make(FileSystem* file_system,
                                              const std::string& directory);
  OutputDirectory(OutputDirectory&&) = default;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  ~OutputDirectory();

  // Without a slash at the end.
  const std::string& path() const { return path_; }

 private:
  OutputDirectory() = default;

  std::string path_;
  // Innermost first.
  std::vector<std::string> made_;
};

// A name that is free: of the second result of one second, `stem`_2.
std::string ResultPath(FileSystem* file_system, const std::string& directory,
                       const std::string& stem, const std::string& extension);

// ALREADY_EXISTS when `path` is there.
absl::Status WriteNewFile(FileSystem* file_system, const std::string& path,
                          absl::string_view text);

// For what reports progress to a function.
analysis::ProgressFn ToFunction(std::shared_ptr<Progress> progress);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_ANALYSIS_FLAGS_H_
