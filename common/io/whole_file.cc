// SPDX-License-Identifier: Apache-2.0
#include "common/io/whole_file.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe {

absl::StatusOr<std::string> ReadWholeFile(FileSystem* file_system,
                                          const std::string& path,
                                          uint64_t max_bytes) {
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  if (size > max_bytes)
    return absl::ResourceExhaustedError(absl::StrCat(path, " is too large"));
  std::string bytes(size, '\0');
  RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(bytes)));
  return bytes;
}

}  // namespace rankprobe
