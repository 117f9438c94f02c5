// SPDX-License-Identifier: Apache-2.0
#include "collector/store/index_env.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace rankprobe {
namespace {

constexpr size_t kBufferBytes = 64 << 10;

leveldb::Status ToLevelDb(const absl::Status& status) {
  if (status.ok()) return leveldb::Status::OK();
  const std::string message(status.message());
  if (absl::IsNotFound(status)) return leveldb::Status::NotFound(message);
  return leveldb::Status::IOError(message);
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

class SequentialFile : public leveldb::SequentialFile {
 public:
  SequentialFile(std::unique_ptr<RandomAccessFile> file, uint64_t size)
      : file_(std::move(file)), size_(size) {}
  leveldb::Status Read(size_t n, leveldb::Slice* result,
                       char* scratch) override {
    const size_t take = std::min<uint64_t>(n, size_ - std::min(at_, size_));
    const absl::Status status = file_->Read(at_, absl::MakeSpan(scratch, take));
    *result = leveldb::Slice(scratch, status.ok() ? take : 0);
    at_ += take;
    return ToLevelDb(status);
  }
  leveldb::Status Skip(uint64_t n) override {
    at_ += n;
    return leveldb::Status::OK();
  }

 private:
  const std::unique_ptr<RandomAccessFile> file_;
  const uint64_t size_;
  uint64_t at_ = 0;
};

class RandomFile : public leveldb::RandomAccessFile {
 public:
  RandomFile(std::unique_ptr<rankprobe::RandomAccessFile> file, uint64_t size)
      : file_(std::move(file)), size_(size) {}
  leveldb::Status Read(uint64_t offset, size_t n, leveldb::Slice* result,
                       char* scratch) const override {
    // Reads past the end are shortened, as by pread.
    const size_t take = std::min<uint64_t>(n, size_ - std::min(offset, size_));
    const absl::Status status =
        file_->Read(offset, absl::MakeSpan(scratch, take));
    *result = leveldb::Slice(scratch, status.ok() ? take : 0);
    return ToLevelDb(status);
  }

 private:
  const std::unique_ptr<rankprobe::RandomAccessFile> file_;
  const uint64_t size_;
};

class BufferedFile : public leveldb::WritableFile {
 public:
  // `entries_dirty`: see NewIndexEnv.
  BufferedFile(FileSystem* file_system, std::string path,
               std::unique_ptr<rankprobe::WritableFile> file,
               std::atomic<bool>* entries_dirty)
      : file_system_(file_system),
        path_(std::move(path)),
        file_(std::move(file)),
        entries_dirty_(entries_dirty) {}

  leveldb::Status Append(const leveldb::Slice& data) override {
    if (buffer_.size() + data.size() <= kBufferBytes) {
      buffer_.append(data.data(), data.size());
      return leveldb::Status::OK();
    }
    const absl::string_view pieces[] = {buffer_, {data.data(), data.size()}};
    const absl::Status status = file_->Append(pieces);
    buffer_.clear();
    return ToLevelDb(status);
  }
  leveldb::Status Flush() override {
    if (buffer_.empty()) return leveldb::Status::OK();
    const absl::Status status = file_->Append(absl::string_view(buffer_));
    buffer_.clear();
    return ToLevelDb(status);
  }
  leveldb::Status Sync() override {
    if (const leveldb::Status status = Flush(); !status.ok()) return status;
    if (const absl::Status status = file_->Sync(); !status.ok())
      return ToLevelDb(status);
    const std::string name = path_.substr(path_.rfind('/') + 1);
    // The directory is always synced for a manifest, because it may name tables
    // whose directory entries are as new as its own.
    const bool dirty = entries_dirty_->exchange(false);
    if (entry_synced_ && !dirty && name.rfind("MANIFEST", 0) != 0)
      return leveldb::Status::OK();
    const absl::Status status = file_system_->SyncDirectory(DirectoryOf(path_));
    entry_synced_ = status.ok();
    if (!status.ok()) *entries_dirty_ = true;
    return ToLevelDb(status);
  }
  leveldb::Status Close() override {
    const leveldb::Status flushed = Flush();
    const leveldb::Status closed = ToLevelDb(file_->Close());
    return flushed.ok() ? closed : flushed;
  }

 private:
  FileSystem* const file_system_;
  const std::string path_;
  const std::unique_ptr<rankprobe::WritableFile> file_;
  std::atomic<bool>* const entries_dirty_;
  std::string buffer_;
  bool entry_synced_ = false;
};

class Lock : public leveldb::FileLock {
 public:
  explicit Lock(std::unique_ptr<rankprobe::FileLock> lock)
      : lock_(std::move(lock)) {}

 private:
  const std::unique_ptr<rankprobe::FileLock> lock_;
};

class NullLogger : public leveldb::Logger {
 public:
  void Logv(const char* format, va_list ap) override {}
};

class IndexEnv : public leveldb::EnvWrapper {
 public:
  IndexEnv(FileSystem* file_system, std::atomic<bool>* entries_dirty)
      : EnvWrapper(leveldb::Env::Default()),
        file_system_(file_system),
        entries_dirty_(entries_dirty) {}

  leveldb::Status NewSequentialFile(const std::string& path,
                                    leveldb::SequentialFile** out) override {
    return OpenForRead<SequentialFile>(path, out);
  }
  leveldb::Status NewRandomAccessFile(
      const std::string& path, leveldb::RandomAccessFile** out) override {
    return OpenForRead<RandomFile>(path, out);
  }
  leveldb::Status NewWritableFile(const std::string& path,
                                  leveldb::WritableFile** out) override {
    return OpenForWrite(path, FileSystem::OpenMode::kTruncate, out);
  }
  leveldb::Status NewAppendableFile(const std::string& path,
                                    leveldb::WritableFile** out) override {
    return OpenForWrite(path, FileSystem::OpenMode::kAppend, out);
  }
  bool FileExists(const std::string& path) override {
    return file_system_->Exists(path);
  }
  leveldb::Status GetChildren(const std::string& directory,
                              std::vector<std::string>* names) override {
    absl::StatusOr<std::vector<std::string>> listed =
        file_system_->List(directory);
    if (!listed.ok()) return ToLevelDb(listed.status());
    *names = *std::move(listed);
    return leveldb::Status::OK();
  }
  leveldb::Status RemoveFile(const std::string& path) override {
    return ToLevelDb(file_system_->Delete(path));
  }
  leveldb::Status CreateDir(const std::string& directory) override {
    return ToLevelDb(file_system_->CreateDirectories(directory));
  }
  leveldb::Status RemoveDir(const std::string& directory) override {
    return ToLevelDb(file_system_->DeleteTree(directory));
  }
  leveldb::Status GetFileSize(const std::string& path,
                              uint64_t* size) override {
    const absl::StatusOr<uint64_t> found = file_system_->FileSize(path);
    *size = found.ok() ? *found : 0;
    return ToLevelDb(found.status());
  }
  leveldb::Status RenameFile(const std::string& from,
                             const std::string& to) override {
    const absl::Status status = file_system_->Rename(from, to);
    // LevelDB deletes the new manifest if the rename fails, so an error may be
    // reported only if the old one is still in force.
    if (!status.ok() &&
        (file_system_->Exists(from) || !file_system_->Exists(to)))
      return ToLevelDb(status);
    // LevelDB next deletes the files that the old name referred to, so the
    // rename has to be on the disk first.
    if (!file_system_->SyncDirectory(DirectoryOf(to)).ok())
      *entries_dirty_ = true;
    return leveldb::Status::OK();
  }
  leveldb::Status LockFile(const std::string& path,
                           leveldb::FileLock** out) override {
    absl::StatusOr<std::unique_ptr<rankprobe::FileLock>> lock =
        file_system_->Lock(path);
    *out = nullptr;
    if (!lock.ok()) return ToLevelDb(lock.status());
    *out = new Lock(*std::move(lock));
    return leveldb::Status::OK();
  }
  leveldb::Status UnlockFile(leveldb::FileLock* lock) override {
    delete lock;
    return leveldb::Status::OK();
  }
  leveldb::Status NewLogger(const std::string& path,
                            leveldb::Logger** out) override {
    *out = new NullLogger;
    return leveldb::Status::OK();
  }

 private:
  template <typename File, typename Out>
  leveldb::Status OpenForRead(const std::string& path, Out** out) {
    *out = nullptr;
    const absl::StatusOr<uint64_t> size = file_system_->FileSize(path);
    if (!size.ok()) return ToLevelDb(size.status());
    absl::StatusOr<std::unique_ptr<rankprobe::RandomAccessFile>> file =
        file_system_->OpenForRead(path);
    if (!file.ok()) return ToLevelDb(file.status());
    *out = new File(*std::move(file), *size);
    return leveldb::Status::OK();
  }
  leveldb::Status OpenForWrite(const std::string& path,
                               FileSystem::OpenMode mode,
                               leveldb::WritableFile** out) {
    absl::StatusOr<std::unique_ptr<rankprobe::WritableFile>> file =
        file_system_->OpenForWrite(path, mode);
    *out = nullptr;
    if (!file.ok()) return ToLevelDb(file.status());
    // Logs are synced by SyncLogs, not by LevelDB.
    if (absl::EndsWith(path, ".log")) *entries_dirty_ = true;
    *out =
        new BufferedFile(file_system_, path, *std::move(file), entries_dirty_);
    return leveldb::Status::OK();
  }

  FileSystem* const file_system_;
  std::atomic<bool>* const entries_dirty_;
};

}  // namespace

std::unique_ptr<leveldb::Env> NewIndexEnv(FileSystem* file_system,
                                          std::atomic<bool>* entries_dirty) {
  return std::make_unique<IndexEnv>(file_system, entries_dirty);
}

}  // namespace rankprobe
