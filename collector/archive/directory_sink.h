// SPDX-License-Identifier: Apache-2.0
// An ExportSink over a staged tree that several sinks of one export share. One
// thread each.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_DIRECTORY_SINK_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_DIRECTORY_SINK_H_

#include <memory>
#include <optional>
#include <string>

#include "collector/archive/export.h"
#include "common/io/staged_tree.h"

namespace rankprobe {

class DirectorySink : public ExportSink {
 public:
  DirectorySink(FileSystem* file_system, StagedTree* tree)
      : file_system_(file_system), tree_(tree) {}

  absl::Status BeginFile(const std::string& path,
                         uint64_t length_bytes) override;
  absl::Status Write(absl::string_view data) override;
  absl::Status EndFile() override;
  absl::Status AbortFile() override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status LinkFile(const std::string& path,
                        const std::string& existing) override {
    return tree_->Link(path, existing);
  }
  std::optional<uint64_t> FindKept(const std::string& path,
                                   uint64_t length_bytes) override {
    return tree_->ReusableXxh3(path, length_bytes);
  }
  absl::Status UseKept(const std::string& path) override {
    return tree_->Reuse(path);
  }

 private:
  FileSystem* const file_system_;
  StagedTree* const tree_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  // The open file is small: it is collected in memory and written at its end.
  bool gathers_ = false;
  std::string gathered_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_DIRECTORY_SINK_H_
