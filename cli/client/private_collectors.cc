// SPDX-License-Identifier: Apache-2.0
#include "cli/client/private_collectors.h"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/flags/analysis_flags.h"
#include "common/base/collector_address.h"
#include "common/base/status_macros.h"
#include "common/text/ranges_text.h"
#include "common/text/shell_word.h"
#include "dump_format/dump_layout.h"
#include "dump_format/input_files.h"
#include "dump_format/json_value.h"
#include "dump_format/read_manifest.h"

namespace rankprobe {
namespace {

constexpr char kBase[] = ".rankprobe";
// Prefixes of names in the directory.
constexpr absl::string_view kCollector = "collector-";
constexpr absl::string_view kLeft = "left-";

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string TextOf(const JsonValue& object, absl::string_view key) {
  const JsonValue* const value = object.Find(key);
  return value != nullptr && value->is_string() ? std::string(value->text) : "";
}

class Finder {
 public:
  explicit Finder(PrivateCollectors* found)
      : found_(*found),
        files_(NewPosixFileSystem()),
        inputs_(OpenInputs(/*force=*/false)) {}

  absl::Status Run() {
    const auto names = files_->List(found_.directory);
    if (!names.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          found_.directory,
          ": is not a directory that can be read; --run names a run"));
    }
    LookInto(found_.directory);
    for (const std::string& name : *names) {
      if (!absl::StartsWith(name, "."))
        LookInto(absl::StrCat(found_.directory, "/", name));
    }
    return absl::OkStatus();
  }

 private:
  void LookInto(const std::string& dump_path) {
    const std::string base = absl::StrCat(dump_path, "/", kBase);
    const auto names = files_->List(base);
    if (!names.ok()) return;
    bool has_left = false;
    for (const std::string& name : *names) {
      absl::string_view host = name;
      has_left = has_left || absl::StartsWith(name, kLeft);
      if (!absl::ConsumePrefix(&host, kCollector)) continue;
      const std::string directory = absl::StrCat(base, "/", name);
      if (host != HostName()) {
        found_.elsewhere.push_back(absl::StrCat(dump_path, " (on ", host, ")"));
      } else {
        AddCollector(dump_path, directory);
      }
    }
    if (has_left) found_.left.push_back(dump_path);
  }

  void AddCollector(const std::string& dump_path,
                    const std::string& directory) {
    // Read by the permission rule: an address that another user could have
    // written is not used.
    const auto job = ReadInput(inputs_.get(), directory + "/job.json");
    const auto address = ReadInput(inputs_.get(), directory + "/address");
    JsonDocument document;
    if (!files_->Exists(directory + "/listens") || !job.ok() || !address.ok() ||
        !document.Parse(*job).ok()) {
      found_.silent.push_back(dump_path);
      return;
    }
    found_.served.push_back(
        {dump_path, TextOf(document.root(), "run"),
         std::string(absl::StripAsciiWhitespace(*address))});
  }

  PrivateCollectors& found_;
  const std::unique_ptr<FileSystem> files_;
  const std::unique_ptr<FileSystem> inputs_;
};

// Returns lines about a dump and the next command; empty if it is not a dump.
std::string DumpText(FileSystem* files, const std::string& path) {
  auto layout = FindDumps(files, path);
  // If there are several jobs and the newest is unknown, the user must name
  // one.
  const bool needs_job = !layout.ok();
  if (needs_job) layout = FindDumps(files, path, /*job=*/1);
  if (!layout.ok() || layout->kind != DumpLayout::Kind::kSteps) return "";
  JsonDocument manifest;
  const auto is_there = ReadManifest(files, path, &manifest);
  const std::string run =
      is_there.ok() && *is_there ? TextOf(manifest.root(), "run") : "";
  return absl::StrCat(path, ": no job records here now; it holds ",
                      needs_job
                          ? absl::StrCat("steps of ", layout->jobs,
                                         "; --job N reads one of them")
                          : absl::StrCat("steps ", RangesText(layout->Steps())),
                      run.empty() ? "" : absl::StrCat(" of run ", run),
                      "\nNext: rankprobe diagnose ", ShellWord(path),
                      needs_job ? " --job 1" : "", "\n");
}

}  // namespace

absl::StatusOr<PrivateCollectors> FindPrivateCollectors(
    const std::string& directory) {
  PrivateCollectors found;
  found.directory = directory;
  while (found.directory.size() > 1 && found.directory.back() == '/')
    found.directory.pop_back();
  // The private directory is inside the directory that the user means.
  if (const absl::string_view name = found.directory;
      absl::EndsWith(name, absl::StrCat("/", kBase)))
    found.directory.resize(name.size() - sizeof(kBase));
  RP_RETURN_IF_ERROR(Finder(&found).Run());
  return found;
}

absl::StatusOr<std::string> WhatIsThere(const PrivateCollectors& found) {
  std::string out;
  for (const std::string& path : found.silent) {
    absl::StrAppend(
        &out, path,
        ": its private collector does not answer: its job is starting or "
        "ending, or was killed; `python -m rankprobe.embedded ",
        ShellWord(path), "` exports what a killed job left\n");
  }
  for (const std::string& path : found.elsewhere)
    absl::StrAppend(&out, path, ": ask on that machine\n");
  for (const std::string& path : found.left) {
    absl::StrAppend(
        &out, path,
        ": the archive of an earlier job is not exported; `python -m "
        "rankprobe.embedded ",
        ShellWord(path), "` exports it\n");
  }
  const std::unique_ptr<FileSystem> inputs = OpenInputs(/*force=*/false);
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      NewPosixFileSystem()->List(found.directory));
  std::string dumps = DumpText(inputs.get(), found.directory);
  if (dumps.empty()) {
    for (const std::string& name : names)
      absl::StrAppend(
          &dumps,
          DumpText(inputs.get(), absl::StrCat(found.directory, "/", name)));
  }
  out += dumps;
  if (!out.empty()) return out;
  return absl::NotFoundError(absl::StrCat(
      found.directory,
      ": no job records here into a private collector, and it holds no dump; "
      "`rankprobe run` records into ./dump_path, and `rankprobe status` alone "
      "asks the collector of --collector"));
}

absl::StatusOr<std::string> ResolveCollector(const std::string& given) {
  if (IsUnixAddress(given) || CheckCollectorAddress(given).ok()) return given;
  const auto found = FindPrivateCollectors(given);
  // It is then probably an address with a typing error.
  if (!found.ok()) return given;
  if (found->served.size() == 1) return found->served.front().address;
  if (found->served.empty()) {
    return absl::UnavailableError(absl::StrCat(
        given, ": no private collector answers there; `rankprobe status ",
        ShellWord(given), "` says what is there"));
  }
  std::vector<std::string> paths;
  paths.reserve(found->served.size());
  for (const PrivateCollector& one : found->served)
    paths.push_back(one.dump_path);
  return absl::InvalidArgumentError(
      absl::StrCat("--collector ", given,
                   ": there are several private collectors; name one: ",
                   absl::StrJoin(paths, ", ")));
}

bool IsUsualCollector(const Globals& globals) {
  return globals.object_store.empty() && !globals.collector_in_environment &&
         globals.collector == Globals().collector;
}

}  // namespace rankprobe
