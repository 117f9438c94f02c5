// SPDX-License-Identifier: Apache-2.0
#include "common/io/staged_tree.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"

namespace rankprobe {
namespace {

constexpr char kTensors[] = "/dump_tensor_data";
constexpr uint64_t kReadBytes = 1 << 20;

// Calls fn with the file's bytes, piece by piece.
template <typename Fn>
absl::Status ReadAll(FileSystem* file_system, const std::string& path,
                     uint64_t size, Fn fn) {
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  std::string data(std::min(size, kReadBytes), '\0');
  for (uint64_t at = 0; at < size; at += data.size()) {
    data.resize(std::min(kReadBytes, size - at));
    RP_RETURN_IF_ERROR(file->Read(at, absl::MakeSpan(data)));
    RP_RETURN_IF_ERROR(fn(data));
  }
  return absl::OkStatus();
}

}  // namespace

StagedTree::StagedTree(FileSystem* file_system, std::string directory,
                       std::string staging)
    : file_system_(file_system),
      directory_(std::move(directory)),
      staging_stays_(!staging.empty()),
      temporary_(staging_stays_ ? std::move(staging)
                                : directory_ + "/.rankprobe-export"),
      // With a staging directory that stays, the list is inside it and removed
      // with it.
      published_(file_system, directory_,
                 staging_stays_ ? temporary_ + "/published"
                                : directory_ + "/.rankprobe-published") {}

absl::StatusOr<std::unique_ptr<StagedTree>> StagedTree::Open(
    FileSystem* file_system, std::string directory, Leftovers leftovers,
    std::string staging) {
  std::unique_ptr<StagedTree> tree(
      new StagedTree(file_system, std::move(directory), std::move(staging)));
  tree->made_ = !file_system->Exists(tree->directory_);
  tree->keep_ = true;  // until it is known to be ours
  RP_RETURN_IF_ERROR(
      ClaimDirectory(file_system, tree->temporary_,
                     absl::StrCat("Unfinished exports to ", tree->directory_)));
  auto lock = file_system->Lock(tree->temporary_ + "/lock");
  if (!lock.ok()) {
    if (!absl::IsFailedPrecondition(lock.status())) return lock.status();
    return absl::FailedPreconditionError(
        absl::StrCat("another export is writing to ", tree->directory_, ": ",
                     lock.status().message()));
  }
  tree->lock_ = *std::move(lock);
  RP_RETURN_IF_ERROR(tree->PutBack());
  tree->keep_ = false;
  RP_RETURN_IF_ERROR(tree->Start(leftovers));
  return tree;
}

StagedTree::~StagedTree() {
  const std::string mine = staging_stays_ ? temporary_ + "/new" : temporary_;
  if (!keep_ && file_system_->Exists(mine)) {
    (staging_stays_ ? file_system_->DeleteTree(mine)
                    : DeleteClaimedDirectory(file_system_, mine))
        .IgnoreError();
  }
  if (made_ && !keep_) {
    const auto left = file_system_->List(directory_);
    if (left.ok() && left->empty())
      file_system_->DeleteTree(directory_).IgnoreError();
  }
}

absl::Status StagedTree::MakeDirectory(const std::string& path) {
  if (std::count(path.begin(), path.end(), '/') == 1)
    RP_RETURN_IF_ERROR(published_.CheckReplaceable(path));
  return file_system_->CreateDirectories(PathOf(path));
}

std::string StagedTree::PathOf(const std::string& path) const {
  return absl::StrCat(temporary_, "/new/", path);
}

std::string StagedTree::KeptPath(const std::string& path) const {
  return absl::StrCat(temporary_, "/kept/", path);
}

template <typename Fn>
absl::Status StagedTree::ForEachPt(const std::string& root, Fn fn) {
  if (!file_system_->Exists(root)) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> steps,
                      file_system_->List(root));
  for (const std::string& step : steps) {
    if (!absl::StartsWith(step, "step")) continue;
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                        file_system_->List(absl::StrCat(root, "/", step)));
    for (const std::string& rank : ranks) {
      const std::string directory = absl::StrCat(step, "/", rank, kTensors);
      const std::string absolute = absl::StrCat(root, "/", directory);
      if (!file_system_->Exists(absolute)) continue;
      RP_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                          file_system_->List(absolute));
      for (const std::string& file : files) {
        if (absl::EndsWith(file, ".pt"))
          RP_RETURN_IF_ERROR(fn(absl::StrCat(directory, "/", file)));
      }
    }
  }
  return absl::OkStatus();
}

// Moves rank directories back that a killed export had moved, if nothing
// has replaced them.
absl::Status StagedTree::PutBack() {
  const std::string old = temporary_ + "/old";
  if (!file_system_->Exists(old)) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system_->List(old));
  for (const std::string& name : names) {
    const size_t dash = name.rfind('-');
    if (dash == std::string::npos) continue;
    const std::string step =
        absl::StrCat(directory_, "/", name.substr(0, dash));
    const std::string rank = absl::StrCat(step, "/", name.substr(dash + 1));
    if (file_system_->Exists(step) && !file_system_->Exists(rank)) {
      RP_RETURN_IF_ERROR(
          file_system_->Rename(absl::StrCat(old, "/", name), rank));
    }
  }
  return file_system_->DeleteTree(old);
}

absl::Status StagedTree::Start(Leftovers leftovers) {
  const std::string fresh = temporary_ + "/new", kept = temporary_ + "/kept";
  reuse_ = leftovers == Leftovers::kReuse;
  if (reuse_) {
    // Two attempts may have been interrupted: the files of the last one are
    // used.
    RP_RETURN_IF_ERROR(
        ForEachPt(fresh, [&](const std::string& path) -> absl::Status {
          const std::string target = KeptPath(path);
          RP_RETURN_IF_ERROR(file_system_->CreateDirectories(
              target.substr(0, target.rfind('/'))));
          return file_system_->Rename(PathOf(path), target);
        }));
  } else if (file_system_->Exists(kept)) {
    RP_RETURN_IF_ERROR(file_system_->DeleteTree(kept));
  }
  if (file_system_->Exists(fresh)) {
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> left,
                        file_system_->List(fresh));
    if (left.empty()) return absl::OkStatus();
    RP_RETURN_IF_ERROR(file_system_->DeleteTree(fresh));
  }
  return file_system_->CreateDirectories(fresh);
}

absl::Status StagedTree::Link(const std::string& path,
                              const std::string& existing) {
  const std::string from = PathOf(existing), to = PathOf(path);
  // An error is ignored, because not every file system has hard links.
  if (file_system_->Link(from, to).ok()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(from));
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system_->OpenForWrite(to, FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(
      ReadAll(file_system_, from, size,
              [&file](const std::string& data) { return file->Append(data); }));
  return file->Close();
}

absl::StatusOr<std::vector<StagedTree::File>> StagedTree::ReusableFiles() {
  std::vector<File> files;
  RP_RETURN_IF_ERROR(ForEachPt(
      temporary_ + "/kept", [&](const std::string& path) -> absl::Status {
        File file{path, 0, 0};
        RP_ASSIGN_OR_RETURN(file.length_bytes,
                            file_system_->FileSize(KeptPath(path)));
        RP_ASSIGN_OR_RETURN(file.xxh3, HashKept(path, file.length_bytes));
        files.push_back(std::move(file));
        return absl::OkStatus();
      }));
  std::stable_sort(files.begin(), files.end(),
                   [](const File& a, const File& b) {
                     return a.length_bytes > b.length_bytes;
                   });
  return files;
}

std::optional<uint64_t> StagedTree::ReusableXxh3(const std::string& path,
                                                 uint64_t length_bytes) {
  if (!reuse_) return std::nullopt;
  const auto size = file_system_->FileSize(KeptPath(path));
  if (!size.ok() || *size != length_bytes) return std::nullopt;
  const absl::StatusOr<uint64_t> xxh3 = HashKept(path, length_bytes);
  return xxh3.ok() ? std::optional<uint64_t>(*xxh3) : std::nullopt;
}

absl::StatusOr<uint64_t> StagedTree::HashKept(const std::string& path,
                                              uint64_t length_bytes) {
  FileHash hash;
  RP_RETURN_IF_ERROR(ReadAll(file_system_, KeptPath(path), length_bytes,
                             [&hash](const std::string& data) {
                               hash.Add(data);
                               return absl::OkStatus();
                             }));
  return hash.Digest();
}

absl::Status StagedTree::Reuse(const std::string& path) {
  return file_system_->Rename(KeptPath(path), PathOf(path));
}

absl::Status StagedTree::MoveStep(const std::string& step,
                                  const std::vector<std::string>& ranks) {
  const std::string fresh = absl::StrCat(temporary_, "/new/", step);
  const std::string old = temporary_ + "/old";
  const std::string step_target = absl::StrCat(directory_, "/", step);
  if (!file_system_->Exists(step_target))
    return file_system_->Rename(fresh, step_target);
  for (const std::string& rank : ranks) {
    const std::string target = absl::StrCat(step_target, "/", rank);
    const std::string moved = absl::StrCat(old, "/", step, "-", rank);
    const bool replaces = file_system_->Exists(target);
    if (replaces) {
      RP_RETURN_IF_ERROR(file_system_->CreateDirectories(old));
      // If the process is killed after this rename, the next Open restores the
      // directory (PutBack).
      RP_RETURN_IF_ERROR(file_system_->Rename(target, moved));
    }
    const absl::Status placed =
        file_system_->Rename(absl::StrCat(fresh, "/", rank), target);
    if (!placed.ok()) {
      // Restores the previous directory, so that one exists; the next Open
      // tries again.
      if (replaces && !file_system_->Rename(moved, target).ok()) keep_ = true;
      return placed;
    }
  }
  return staging_stays_ ? file_system_->DeleteTree(fresh) : absl::OkStatus();
}

std::optional<std::string> StagedTree::OthersRun(const std::string& rank,
                                                 absl::string_view run) {
  std::optional<std::string> made = published_.RunOf(rank);
  // With a staging directory that stays, the list names everything of its job.
  // Another job may have the same run (a restart), so the run is not compared.
  if (made.has_value() &&
      (staging_stays_ ? published_.IsListed(rank) : *made == run))
    return std::nullopt;
  return made;
}

absl::Status StagedTree::MoveAside(const std::set<std::string>& ranks,
                                   absl::string_view run, bool manifest) {
  const auto move = [&](const std::string& rank) -> absl::Status {
    // The manifest may be long, so it is read only if something is in the way.
    if (!file_system_->Exists(absl::StrCat(directory_, "/", rank)))
      return absl::OkStatus();
    const std::optional<std::string> others = OthersRun(rank, run);
    if (!others.has_value()) return absl::OkStatus();
    RP_ASSIGN_OR_RETURN(const std::string place,
                        published_.MoveAside(rank, *others));
    moved_to_.insert(place);
    return absl::OkStatus();
  };
  for (const std::string& rank : ranks) {
    RP_RETURN_IF_ERROR(move(rank));
    // Processes without ranks of two runs are not processes of one job, and
    // readers could not separate them in one step.
    const size_t slash = rank.find('/');
    const std::string step = rank.substr(0, slash);
    if (!absl::StartsWith(rank.substr(slash + 1), "proc") ||
        !file_system_->Exists(absl::StrCat(directory_, "/", step)))
      continue;
    RP_ASSIGN_OR_RETURN(
        const std::vector<std::string> names,
        file_system_->List(absl::StrCat(directory_, "/", step)));
    for (const std::string& name : names) {
      const std::string other = absl::StrCat(step, "/", name);
      if (absl::StartsWith(name, "proc") && published_.RunOf(other) != run)
        RP_RETURN_IF_ERROR(move(other));
    }
  }
  const std::string told = directory_ + "/manifest.json";
  if (!manifest || moved_to_.empty() || !file_system_->Exists(told))
    return absl::OkStatus();
  // The new manifest takes the name of the old one.
  const std::string kept =
      absl::StrCat(directory_, "/", *moved_to_.begin(), "/manifest.json");
  return file_system_->Exists(kept) ? absl::OkStatus()
                                    : file_system_->Rename(told, kept);
}

absl::Status StagedTree::Publish(absl::string_view run) {
  const std::string fresh = temporary_ + "/new", old = temporary_ + "/old";
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> steps,
                      file_system_->List(fresh));
  bool manifest = false;
  std::vector<std::pair<std::string, std::vector<std::string>>> ranks_of_steps;
  std::set<std::string> ranks;
  for (const std::string& step : steps) {
    if (step == "manifest.json") {
      manifest = true;
      RP_RETURN_IF_ERROR(published_.CheckManifestReplaceable());
      continue;
    }
    RP_ASSIGN_OR_RETURN(std::vector<std::string> names,
                        file_system_->List(absl::StrCat(fresh, "/", step)));
    for (const std::string& name : names) {
      std::string rank = absl::StrCat(step, "/", name);
      RP_RETURN_IF_ERROR(published_.CheckReplaceable(rank));
      ranks.insert(std::move(rank));
    }
    ranks_of_steps.emplace_back(step, std::move(names));
  }
  if (staging_stays_)
    RP_RETURN_IF_ERROR(file_system_->CreateDirectories(directory_));
  // Before WriteAll and Append, after which these ranks count as this export's.
  RP_RETURN_IF_ERROR(MoveAside(ranks, run, manifest));
  // Listed before they are moved: if the export is killed here, it can be
  // repeated.
  if (!ranks.empty()) {
    RP_RETURN_IF_ERROR(manifest ? published_.WriteAll(ranks)
                                : published_.Append(ranks));
  }
  for (const auto& [step, names] : ranks_of_steps)
    RP_RETURN_IF_ERROR(MoveStep(step, names));
  if (manifest) {
    // After the directories, so that the manifest never names one that is not
    // in place.
    RP_RETURN_IF_ERROR(file_system_->Rename(fresh + "/manifest.json",
                                            directory_ + "/manifest.json"));
    RP_RETURN_IF_ERROR(published_.WriteRest(ranks));
  }
  keep_ = true;  // nothing is left to delete after this
  if (!staging_stays_) return DeleteClaimedDirectory(file_system_, temporary_);
  return file_system_->Exists(old) ? file_system_->DeleteTree(old)
                                   : absl::OkStatus();
}

}  // namespace rankprobe
