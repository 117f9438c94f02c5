// SPDX-License-Identifier: Apache-2.0
// The disk of a machine, as one process sees it: from the moment in which that is
// killed nothing that it still does reaches the disk, and its lock is free.
// What it had written stays. Ownership: the disk outlives it. Thread-safe, but for
// KillAtWrite: one thread writes.
#ifndef RANKPROBE_TESTS_SIM_MORTAL_FILE_SYSTEM_H_
#define RANKPROBE_TESTS_SIM_MORTAL_FILE_SYSTEM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/io/file_system.h"

namespace rankprobe::sim {

class MortalFileSystem final : public FileSystem {
 public:
  explicit MortalFileSystem(FileSystem* disk)
      : disk_(disk), dead_(std::make_shared<std::atomic<bool>>(false)) {}

  // It is killed instead of its `count`th write from now, and `killed` is
  // called.
  void KillAtWrite(uint64_t count, std::function<void()> killed) {
    *writes_ = {count, std::move(killed)};
  }

  void Kill() {
    *dead_ = true;
    absl::MutexLock lock(&mutex_);
    for (const std::weak_ptr<std::unique_ptr<FileLock>>& weak : locks_) {
      if (const auto held = weak.lock(); held != nullptr) held->reset();
    }
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) override {
    RP_RETURN_IF_ERROR(Check());
    RP_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                        disk_->OpenForWrite(path, mode));
    return std::make_unique<Writer>(std::move(file), this);
  }
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->OpenForRead(path);
  }
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->FileSize(path);
  }
  bool Exists(const std::string& path) override { return disk_->Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->List(directory);
  }
  absl::Status CreateDirectories(const std::string& directory) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->CreateDirectories(directory);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->Rename(from, to);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->Link(from, to);
  }
  absl::Status SyncFile(const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->SyncFile(path);
  }
  absl::Status Delete(const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->Delete(path);
  }
  absl::Status DeleteTree(const std::string& directory) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->DeleteTree(directory);
  }
  absl::Status Truncate(const std::string& path, uint64_t size) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->Truncate(path, size);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->SyncDirectory(directory);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    RP_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, disk_->Lock(path));
    auto held = std::make_shared<std::unique_ptr<FileLock>>(std::move(lock));
    absl::MutexLock guard(&mutex_);
    locks_.push_back(held);
    return std::make_unique<Held>(std::move(held));
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->FreeBytes(path);
  }
  absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) override {
    RP_RETURN_IF_ERROR(Check());
    return disk_->CapacityBytes(path);
  }

 private:
  using Dead = std::shared_ptr<std::atomic<bool>>;
  static absl::Status CheckAlive(const Dead& dead) {
    return *dead ? absl::InternalError("the process was killed")
                 : absl::OkStatus();
  }
  absl::Status Check() const { return CheckAlive(dead_); }

  // Files may outlive it.
  struct Writes {
    uint64_t left = 0;
    std::function<void()> killed;
  };
  static absl::Status CheckWrite(const Dead& dead, Writes* writes) {
    if (!*dead && writes->left > 0 && --writes->left == 0) {
      *dead = true;
      writes->killed();
    }
    return CheckAlive(dead);
  }

  class Writer final : public WritableFile {
   public:
    Writer(std::unique_ptr<WritableFile> file, MortalFileSystem* files)
        : file_(std::move(file)),
          dead_(files->dead_),
          writes_(files->writes_) {}
    absl::Status Append(absl::Span<const absl::string_view> pieces) override {
      RP_RETURN_IF_ERROR(CheckWrite(dead_, writes_.get()));
      return file_->Append(pieces);
    }
    absl::Status Sync() override {
      RP_RETURN_IF_ERROR(CheckWrite(dead_, writes_.get()));
      return file_->Sync();
    }
    absl::Status Close() override {
      RP_RETURN_IF_ERROR(CheckAlive(dead_));
      return file_->Close();
    }

   private:
    const std::unique_ptr<WritableFile> file_;
    const Dead dead_;
    const std::shared_ptr<Writes> writes_;
  };
  class Held final : public FileLock {
   public:
    explicit Held(std::shared_ptr<std::unique_ptr<FileLock>> lock)
        : lock_(std::move(lock)) {}

   private:
    const std::shared_ptr<std::unique_ptr<FileLock>> lock_;
  };

  FileSystem* const disk_;
  const Dead dead_;
  const std::shared_ptr<Writes> writes_ = std::make_shared<Writes>();
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<std::unique_ptr<FileLock>>> locks_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_MORTAL_FILE_SYSTEM_H_
