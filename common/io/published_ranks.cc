// SPDX-License-Identifier: Apache-2.0
#include "common/io/published_ranks.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/io/whole_file.h"

namespace rankprobe {

const char kClaimFile[] = ".rankprobe-own";

namespace {

constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
constexpr absl::string_view kFormat = "\"format\": \"rankprobe-manifest-1\"";
constexpr absl::string_view kPath = "\"path\": \"";
// Each manifest in the file begins with its run; the files of an earlier one
// may be elsewhere (_manifests.py writes both).
constexpr absl::string_view kRun = "\"run\": \"";
constexpr absl::string_view kElsewhere = "\"directory\": \"";
constexpr size_t kMaxNameBytes = 100;

// Returns "step0/rank1" for "step0/rank1/dump.json"; empty if there is no such
// part.
absl::string_view RankOf(absl::string_view path) {
  const size_t step = path.find('/');
  if (step == absl::string_view::npos) return {};
  const size_t rank = path.find('/', step + 1);
  return rank == absl::string_view::npos ? absl::string_view()
                                         : path.substr(0, rank);
}

// A directory name for a run; _published.py computes the same.
std::string DirectoryName(absl::string_view run) {
  std::string name(run.substr(0, kMaxNameBytes));
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') c = '_';
  }
  if (name.empty()) return "unnamed";
  if (name[0] == '.') name[0] = '_';
  return name;
}

}  // namespace

PublishedRanks::PublishedRanks(FileSystem* file_system, std::string directory,
                               std::string list)
    : file_system_(file_system),
      directory_(std::move(directory)),
      list_(std::move(list)) {}

void PublishedRanks::Load() {
  if (std::exchange(loaded_, true)) return;
  if (const auto list = ReadWholeFile(file_system_, list_, kMaxBytes);
      list.ok()) {
    for (const absl::string_view line : absl::StrSplit(*list, '\n')) {
      if (!line.empty()) listed_.emplace(line);
    }
    ranks_ = listed_;
  }
  const auto manifest =
      ReadWholeFile(file_system_, directory_ + "/manifest.json", kMaxBytes);
  if (!manifest.ok() || !absl::StrContains(manifest->substr(0, 4096), kFormat))
    return;
  manifest_is_ours_ = true;
  // A JSON parser would need many times the size of the text in memory.
  absl::string_view rest = *manifest;
  std::string run;
  bool elsewhere = false;
  // Returns the text after `key` if the rest begins with it, otherwise empty.
  const auto value = [&rest](absl::string_view key) {
    if (!absl::ConsumePrefix(&rest, key)) return absl::string_view();
    return rest.substr(0, rest.find('"'));
  };
  for (size_t at = rest.find('"'); at != absl::string_view::npos;
       at = rest.find('"', 1)) {
    rest.remove_prefix(at);
    if (absl::StartsWith(rest, kRun)) {
      run = std::string(value(kRun));
      elsewhere = false;
    } else if (!value(kElsewhere).empty()) {
      elsewhere = true;
    } else if (const absl::string_view rank = RankOf(value(kPath));
               !rank.empty() && !elsewhere) {
      ranks_.emplace(rank);
      in_manifest_.emplace(rank, run);
    }
  }
}

std::optional<std::string> PublishedRanks::RunOf(const std::string& rank) {
  absl::MutexLock lock(&mutex_);
  Load();
  const auto found = in_manifest_.find(rank);
  if (found == in_manifest_.end()) return std::nullopt;
  return found->second;
}

bool PublishedRanks::IsListed(const std::string& rank) {
  absl::MutexLock lock(&mutex_);
  Load();
  return listed_.contains(rank);
}

absl::StatusOr<std::string> PublishedRanks::MoveAside(const std::string& rank,
                                                      const std::string& run) {
  const std::string name = absl::StrCat("earlier/", DirectoryName(run));
  std::string place = name;
  for (int number = 2;
       file_system_->Exists(absl::StrCat(directory_, "/", place, "/", rank));
       ++number)
    place = absl::StrCat(name, ".", number);
  const std::string target = absl::StrCat(directory_, "/", place, "/", rank);
  RP_RETURN_IF_ERROR(
      file_system_->CreateDirectories(target.substr(0, target.rfind('/'))));
  RP_RETURN_IF_ERROR(
      file_system_->Rename(absl::StrCat(directory_, "/", rank), target));
  return place;
}

absl::Status PublishedRanks::CheckReplaceable(const std::string& rank) {
  const std::string path = absl::StrCat(directory_, "/", rank);
  if (!file_system_->Exists(path)) return absl::OkStatus();
  // If the path contains a link, a confined file system reports which one.
  if (const absl::Status status = file_system_->FileSize(path).status();
      absl::IsPermissionDenied(status))
    return status;
  absl::MutexLock lock(&mutex_);
  Load();
  if (ranks_.contains(rank)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      path, " exists and was not made by an export (no manifest names it): ",
      "remove it, or name another directory"));
}

absl::Status PublishedRanks::CheckManifestReplaceable() {
  const std::string path = directory_ + "/manifest.json";
  if (!file_system_->Exists(path)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  Load();
  if (manifest_is_ours_) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      path, " exists and was not made by an export: remove it, or name ",
      "another directory"));
}

absl::Status PublishedRanks::Append(const std::set<std::string>& ranks) {
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system_->OpenForWrite(list_, FileSystem::OpenMode::kAppend));
  RP_RETURN_IF_ERROR(
      file->Append(absl::StrCat(absl::StrJoin(ranks, "\n"), "\n")));
  absl::MutexLock lock(&mutex_);
  ranks_.insert(ranks.begin(), ranks.end());
  return file->Close();
}

absl::Status PublishedRanks::Write(const std::set<std::string>& ranks) {
  if (ranks.empty()) {
    return file_system_->Exists(list_) ? file_system_->Delete(list_)
                                       : absl::OkStatus();
  }
  const std::string fresh = list_ + ".new";
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system_->OpenForWrite(fresh, FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(
      file->Append(absl::StrCat(absl::StrJoin(ranks, "\n"), "\n")));
  RP_RETURN_IF_ERROR(file->Close());
  // Replaced by a rename: a crash leaves either the old or the new list.
  return file_system_->Rename(fresh, list_);
}

absl::Status PublishedRanks::WriteAll(const std::set<std::string>& ranks) {
  absl::MutexLock lock(&mutex_);
  Load();
  std::set<std::string> all = ranks_;
  all.insert(ranks.begin(), ranks.end());
  return Write(all);
}

absl::Status PublishedRanks::WriteRest(const std::set<std::string>& ranks) {
  absl::MutexLock lock(&mutex_);
  std::set<std::string> rest;
  std::set_difference(ranks_.begin(), ranks_.end(), ranks.begin(), ranks.end(),
                      std::inserter(rest, rest.end()));
  return Write(rest);
}

absl::Status ClaimDirectory(FileSystem* file_system,
                            const std::string& directory,
                            absl::string_view purpose) {
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(directory));
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system->List(directory));
  if (std::find(names.begin(), names.end(), kClaimFile) != names.end())
    return absl::OkStatus();
  if (!names.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        directory, " holds files that no export made (", names.front(),
        ", ..; no ", kClaimFile, "): remove it, or name another"));
  }
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system->OpenForWrite(absl::StrCat(directory, "/", kClaimFile),
                                FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(
      file->Append(absl::StrCat(purpose, "; it may be deleted at any time\n")));
  return file->Close();
}

absl::Status DeleteClaimedDirectory(FileSystem* file_system,
                                    const std::string& directory) {
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system->List(directory));
  for (const std::string& name : names) {
    if (name != kClaimFile) {
      RP_RETURN_IF_ERROR(
          file_system->DeleteTree(absl::StrCat(directory, "/", name)));
    }
  }
  return file_system->DeleteTree(directory);
}

}  // namespace rankprobe
