#include "collector/archive/directory_sink.h"

#include "common/status_macros.h"

namespace rankprobe {

absl::Status DirectorySink::BeginFile(const std::string& path,
                                      uint64_t length_bytes) {
  path_ = tree_->PathOf(path);
  RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                 path_, FileSystem::OpenMode::kTruncate));
  return absl::OkStatus();
}

absl::Status DirectorySink::EndFile() {
  absl::Status status = file_->Close();
  file_.reset();
  return status;
}

absl::Status DirectorySink::AbortFile() {
  file_.reset();
  return file_system_->Delete(path_);
}

absl::Status DirectorySink::MakeDirectory(const std::string& path) {
  return file_system_->CreateDirectories(tree_->PathOf(path));
}

}  // namespace rankprobe
