// SPDX-License-Identifier: Apache-2.0
// Files that exist in memory only, to read from. For fuzzing; not thread-safe.
#ifndef RANKPROBE_TESTS_FUZZ_MEMORY_FILES_H_
#define RANKPROBE_TESTS_FUZZ_MEMORY_FILES_H_

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

class MemoryFiles : public FileSystem {
 public:
  void Set(const std::string& path, absl::string_view content) {
    files_[path] = std::string(content);
  }

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) override {
    const auto it = files_.find(path);
    if (it == files_.end()) return absl::NotFoundError(path);
    return std::make_unique<Reader>(&it->second);
  }
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    const auto it = files_.find(path);
    if (it == files_.end()) return absl::NotFoundError(path);
    return it->second.size();
  }
  bool Exists(const std::string& path) override {
    return files_.contains(path);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) override {
    return ReadOnly();
  }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override {
    return ReadOnly();
  }
  absl::Status CreateDirectories(const std::string& directory) override {
    return ReadOnly();
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return ReadOnly();
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return ReadOnly();
  }
  absl::Status SyncFile(const std::string& path) override { return ReadOnly(); }
  absl::Status Delete(const std::string& path) override { return ReadOnly(); }
  absl::Status DeleteTree(const std::string& directory) override {
    return ReadOnly();
  }
  absl::Status Truncate(const std::string& path, uint64_t size) override {
    return ReadOnly();
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    return ReadOnly();
  }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) override {
    return ReadOnly();
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    return ReadOnly();
  }
  absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) override {
    return ReadOnly();
  }

 private:
  class Reader : public RandomAccessFile {
   public:
    explicit Reader(const std::string* content) : content_(content) {}
    absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
      if (offset > content_->size() || out.size() > content_->size() - offset) {
        return absl::OutOfRangeError("read past the end");
      }
      if (!out.empty()) {
        std::memcpy(out.data(), content_->data() + offset, out.size());
      }
      return absl::OkStatus();
    }

   private:
    const std::string* const content_;
  };
  static absl::Status ReadOnly() {
    return absl::UnimplementedError("memory files are read-only");
  }

  std::map<std::string, std::string> files_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_TESTS_FUZZ_MEMORY_FILES_H_
