// SPDX-License-Identifier: Apache-2.0
#include "dump_format/input_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxTextBytes = 1 << 20;

class InputFiles : public FileSystem {
 public:
  explicit InputFiles(InputFilesOptions options)
      : options_(std::move(options)), files_(NewPosixFileSystem()) {}

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) override {
    const size_t slash = path.rfind('/');
    RP_RETURN_IF_ERROR(CheckDirectory(slash == std::string::npos ? "."
                                      : slash == 0               ? "/"
                                                   : path.substr(0, slash)));
    RP_RETURN_IF_ERROR(Check(path));
    return files_->OpenForRead(path);
  }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override {
    // The listing itself reports a path that is not a directory.
    struct stat st;
    if (::stat(directory.c_str(), &st) == 0 && S_ISDIR(st.st_mode))
      RP_RETURN_IF_ERROR(CheckDirectory(directory));
    return files_->List(directory);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) override {
    return files_->OpenForWrite(path, mode);
  }
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    return files_->FileSize(path);
  }
  bool Exists(const std::string& path) override { return files_->Exists(path); }
  absl::Status CreateDirectories(const std::string& directory) override {
    return files_->CreateDirectories(directory);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_->Rename(from, to);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return files_->Link(from, to);
  }
  absl::Status SyncFile(const std::string& path) override {
    return files_->SyncFile(path);
  }
  absl::Status Delete(const std::string& path) override {
    return files_->Delete(path);
  }
  absl::Status DeleteTree(const std::string& directory) override {
    return files_->DeleteTree(directory);
  }
  absl::Status Truncate(const std::string& path, uint64_t size) override {
    return files_->Truncate(path, size);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    return files_->SyncDirectory(directory);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) override {
    return files_->Lock(path);
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    return files_->FreeBytes(path);
  }
  absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) override {
    return files_->CapacityBytes(path);
  }

 private:
  // Cached, because most files of a dump are in a few directories.
  absl::Status CheckDirectory(const std::string& path) {
    {
      absl::MutexLock lock(&mutex_);
      if (checked_.contains(path)) return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(Check(path));
    absl::MutexLock lock(&mutex_);
    checked_.insert(path);
    return absl::OkStatus();
  }

  absl::Status Check(const std::string& path) {
    struct stat st;
    // Opening reports a path that does not exist.
    if (::lstat(path.c_str(), &st) != 0) return absl::OkStatus();
    if (S_ISLNK(st.st_mode)) {
      RP_RETURN_IF_ERROR(Refuse("link", path, "is a symbolic link"));
      if (::stat(path.c_str(), &st) != 0) return absl::OkStatus();
    }
    // In a directory like /tmp only the owner can replace a file.
    const bool sticky = S_ISDIR(st.st_mode) && (st.st_mode & S_ISVTX) != 0;
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky) {
      RP_RETURN_IF_ERROR(
          Refuse("mode", path,
                 absl::StrFormat("can be changed by other users (mode %04o)",
                                 st.st_mode & 07777U)));
    }
    if (st.st_uid != ::geteuid() && ::geteuid() != 0 && !sticky) {
      RP_RETURN_IF_ERROR(
          Refuse("owner", path, absl::StrCat("belongs to user ", st.st_uid)));
    }
    return absl::OkStatus();
  }

  absl::Status Refuse(const char* rule, const std::string& path,
                      absl::string_view reason) {
    if (!options_.force) {
      return absl::PermissionDeniedError(
          absl::StrCat(path, ": ", reason, "; --force reads it anyway"));
    }
    absl::MutexLock lock(&mutex_);
    if (warned_.insert(rule).second && options_.warn) {
      options_.warn(absl::StrCat(path, ": ", reason,
                                 "; it is read because of --force, and so are "
                                 "others like it"));
    }
    return absl::OkStatus();
  }

  const InputFilesOptions options_;
  const std::unique_ptr<FileSystem> files_;
  absl::Mutex mutex_;
  std::set<std::string> checked_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> warned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<FileSystem> NewInputFiles(InputFilesOptions options) {
  return std::make_unique<InputFiles>(std::move(options));
}

absl::StatusOr<std::string> ReadInput(FileSystem* file_system,
                                      const std::string& path) {
  const auto opened = file_system->OpenForRead(path);
  if (absl::IsPermissionDenied(opened.status())) return opened.status();
  if (!opened.ok())
    return absl::InvalidArgumentError(opened.status().message());
  const std::unique_ptr<RandomAccessFile>& file = *opened;
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  if (size > kMaxTextBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, ": over 1 MiB"));
  std::string text(size, '\0');
  RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(text)));
  return text;
}

}  // namespace rankprobe
