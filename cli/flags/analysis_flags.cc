// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/analysis_flags.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/exit_codes.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/io/confined_file_system.h"
#include "dump_format/input_files.h"

namespace rankprobe {

std::vector<std::string> ArgumentsOf(int argc, char** argv) {
  static const auto* const kVerbs = new std::vector<std::string>{
      "compare",          "graph_visualize", "overflow_check", "acc_check",
      "first-divergence", "replicas",        "align",          "config_check"};
  // CLI11 parses -tp as -t and -p.
  static const auto* const kLong = new std::map<std::string, std::string>{
      {"-tp", "--target_path"},
      {"-gp", "--golden_path"},
      {"-fm", "--fuzzy_match"},
      {"-cm", "--cell_mapping"},
      {"-am", "--api_mapping"},
      {"-dm", "--data_mapping"},
      {"-lm", "--layer_mapping"},
      {"-da", "--diff_analyze"},
      {"-oc", "--overflow_check"},
      {"-tensor_log", "--is_print_compare_log"},
      {"-progress_log", "--is_print_progress_log"},
      {"-csv_path", "--result_csv_path"},
      {"-api_info", "--api_info_file"},
      {"-save_error_data", "--save_error_data"}};
  std::vector<std::string> arguments(argv + 1, argv + argc);
  bool analysis = false;
  for (std::string& argument : arguments) {
    // Only for these verbs, because -tp and similar flags are msprobe's.
    for (const std::string& verb : *kVerbs) {
      analysis = analysis || argument == verb;
    }
    if (!analysis) continue;
    const auto it = kLong->find(argument);
    if (it != kLong->end()) argument = it->second;
  }
  return arguments;
}

std::unique_ptr<FileSystem> OpenInputs(bool force) {
  // A job of a page (web/jobs) reads and writes only below these directories,
  // whatever its arguments are and whatever links are created meanwhile.
  if (const char* const below = std::getenv("RANKPROBE_READ_BELOW")) {
    absl::StatusOr<std::unique_ptr<FileSystem>> files =
        NewConfinedFileSystem(absl::StrSplit(below, '\n', absl::SkipEmpty()));
    if (files.ok()) return *std::move(files);
    Print(stderr, "rankprobe: %s\n", files.status().message());
    // Nothing may be read without the confinement.
    std::exit(kRefused);
  }
  return NewInputFiles({force, [](const std::string& text) {
                          Print(stderr, "rankprobe: warning: %s\n", text);
                        }});
}

void AddForce(CLI::App* verb, bool* force) {
  verb->add_flag("--force", *force,
                 "read files that others can change, that belong to another "
                 "user, or that are links (with a warning)");
}

void AddJob(CLI::App* verb, std::optional<int64_t>* job) {
  verb->add_option("--job", *job,
                   "number of the job to read, as listed in the answer, if "
                   "several jobs recorded into this run or directory; default: "
                   "the newest")
      ->check(CLI::PositiveNumber);
}

void AddJobs(CLI::App* verb, std::optional<int64_t>* job,
             std::optional<int64_t>* reference_job) {
  AddJob(verb, job);
  verb->add_option("--reference-job", *reference_job,
                   "like --job, for the reference")
      ->check(CLI::PositiveNumber);
}

CLI::Option* AddTarget(CLI::App* verb, std::string* path,
                       const std::string& text) {
  return verb->add_option("--target_path,target", *path,
                          absl::StrCat("-tp: ", text));
}

CLI::Option* AddReference(CLI::App* verb, std::string* path,
                          const std::string& text) {
  return verb->add_option("--golden_path,reference", *path,
                          absl::StrCat("-gp: ", text));
}

CLI::Option* AddInput(CLI::App* verb, const std::string& place,
                      std::string* path, const std::string& text) {
  return verb->add_option(absl::StrCat("-i,--input_path,", place), *path, text);
}

CLI::Option* AddLayerMapping(CLI::App* verb, std::string* file) {
  return verb
      ->add_option("--layer_mapping", *file,
                   "-lm [FILE]: match layers of other names")
      ->expected(0, 1);
}

void AddApiMapping(CLI::App* verb, std::string* file) {
  verb->add_option("--api_mapping", *file,
                   "-am: yaml of API names, target: reference; \"mindspore\": "
                   "the built-in table");
}

absl::StatusOr<analysis::MatchOptions> ReadMappingFiles(
    FileSystem* file_system, const analysis::MappingFiles& files) {
  std::vector<std::string> warnings;
  RP_ASSIGN_OR_RETURN(analysis::MatchOptions options,
                      analysis::ReadMappings(file_system, files, &warnings));
  for (const std::string& text : warnings)
    Print(stderr, "rankprobe: warning: %s\n", text);
  return options;
}

absl::StatusOr<OutputDirectory> OutputDirectory::Make(
    FileSystem* file_system, const std::string& directory) {
  OutputDirectory output;
  std::string& path = output.path_;
  path = directory;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  for (std::string missing = path; !file_system->Exists(missing);) {
    output.made_.push_back(missing);
    const size_t slash = missing.rfind('/');
    if (slash == std::string::npos || slash == 0) break;
    missing.resize(slash);
  }
  const absl::Status made = file_system->CreateDirectories(path);
  if (!made.ok()) return absl::InvalidArgumentError(made.message());
  return output;
}

OutputDirectory::~OutputDirectory() {
  for (const std::string& directory : made_) {
    // rmdir refuses a directory that is not empty, including one that was
    // filled just now.
    if (::rmdir(directory.c_str()) != 0) return;
  }
}

std::string ResultPath(FileSystem* file_system, const std::string& directory,
                       const std::string& stem, const std::string& extension) {
  std::string path = absl::StrCat(directory, "/", stem, extension);
  // msprobe's names end with the time in seconds; the result of another run in
  // the same second is not overwritten.
  for (int i = 2; file_system->Exists(path); ++i) {
    path = absl::StrCat(directory, "/", stem, "_", i, extension);
  }
  return path;
}

absl::Status WriteNewFile(FileSystem* file_system, const std::string& path,
                          absl::string_view text) {
  RP_ASSIGN_OR_RETURN(
      const auto file,
      file_system->OpenForWrite(path, FileSystem::OpenMode::kCreateNew));
  RP_RETURN_IF_ERROR(file->Append(text));
  return file->Close();
}

analysis::ProgressFn ToFunction(std::shared_ptr<Progress> progress) {
  return [progress = std::move(progress)](size_t done, size_t all) {
    progress->Show(done, all);
  };
}

}  // namespace rankprobe
