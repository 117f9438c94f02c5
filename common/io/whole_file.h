// SPDX-License-Identifier: Apache-2.0
// Reading of a complete small file. A free function. Failure:
// RESOURCE_EXHAUSTED for a file above the limit; else the file system's.
#ifndef RANKPROBE_COMMON_IO_WHOLE_FILE_H_
#define RANKPROBE_COMMON_IO_WHOLE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

absl::StatusOr<std::string> ReadWholeFile(FileSystem* file_system,
                                          const std::string& path,
                                          uint64_t max_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_WHOLE_FILE_H_
