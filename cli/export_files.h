// Files of a streamed export, written under a temporary name. Paths come from
// the collector and are not trusted. Not thread-safe.
#ifndef RANKPROBE_CLI_EXPORT_FILES_H_
#define RANKPROBE_CLI_EXPORT_FILES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/file_system.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// Relative, '/'-separated, no empty, "." or ".." components, no control bytes.
bool IsSafeRelativePath(absl::string_view path);

class ExportFiles {
 public:
  ExportFiles(FileSystem* file_system, std::string directory);
  // Removes what was not finished.
  ~ExportFiles();

  absl::Status Start();
  absl::Status OnEvent(const v1::ExportEvent& untrusted);
  // Moves everything to its place.
  absl::Status Finish();

 private:
  absl::Status CloseFile();

  FileSystem* const file_system_;
  const std::string directory_;
  const std::string temporary_;
  std::string path_;
  uint64_t missing_bytes_ = 0;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_EXPORT_FILES_H_
