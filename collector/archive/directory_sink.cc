// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/directory_sink.h"

#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxGatheredBytes = 64 << 10;

}  // namespace

absl::Status DirectorySink::BeginFile(const std::string& path,
                                      uint64_t length_bytes) {
  path_ = tree_->PathOf(path);
  gathers_ = length_bytes <= kMaxGatheredBytes;
  gathered_.clear();
  RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                 path_, FileSystem::OpenMode::kTruncate));
  return absl::OkStatus();
}

absl::Status DirectorySink::Write(absl::string_view data) {
  if (!gathers_) return file_->Append(data);
  gathered_.append(data.data(), data.size());
  return absl::OkStatus();
}

absl::Status DirectorySink::EndFile() {
  absl::Status status;
  if (gathers_) status = file_->Append(gathered_);
  status.Update(file_->Close());
  file_.reset();
  return status;
}

absl::Status DirectorySink::AbortFile() {
  file_.reset();
  return file_system_->Delete(path_);
}

absl::Status DirectorySink::MakeDirectory(const std::string& path) {
  return tree_->MakeDirectory(path);
}

}  // namespace rankprobe
