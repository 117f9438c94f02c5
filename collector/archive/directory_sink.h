// An ExportSink over a local directory. Owned by one export, one thread.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_DIRECTORY_SINK_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_DIRECTORY_SINK_H_

#include <memory>
#include <string>

#include "collector/archive/export.h"

namespace rankprobe {

class DirectorySink : public ExportSink {
 public:
  DirectorySink(FileSystem* file_system, std::string root)
      : file_system_(file_system), root_(std::move(root)) {}

  absl::Status BeginFile(const std::string& path,
                         uint64_t length_bytes) override;
  absl::Status Write(absl::string_view data) override {
    return file_->Append(data);
  }
  absl::Status EndFile() override;
  absl::Status AbortFile() override;
  absl::Status MakeDirectory(const std::string& path) override;

 private:
  FileSystem* const file_system_;
  const std::string root_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_DIRECTORY_SINK_H_
