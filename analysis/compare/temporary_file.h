// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name once it is complete. Until then it has a
// temporary name in the same directory and is deleted with the object. Not
// thread-safe.
#ifndef RANKPROBE_ANALYSIS_COMPARE_TEMPORARY_FILE_H_
#define RANKPROBE_ANALYSIS_COMPARE_TEMPORARY_FILE_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

class TemporaryFile {
 public:
  // `file_system` outlives the object.
  TemporaryFile(FileSystem* file_system, std::string path)
      : file_system_(file_system),
        path_(std::move(path)),
        temporary_(absl::StrCat(path_, ".part")) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) (void)file_system_->Delete(temporary_);
  }
  const std::string& name() const { return temporary_; }
  absl::Status Rename() {
    RP_RETURN_IF_ERROR(file_system_->Rename(temporary_, path_));
    renamed_ = true;
    return absl::OkStatus();
  }

 private:
  FileSystem* const file_system_;
  const std::string path_;
  const std::string temporary_;
  bool renamed_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_TEMPORARY_FILE_H_
