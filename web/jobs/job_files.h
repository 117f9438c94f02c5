// SPDX-License-Identifier: Apache-2.0
// Files of a job's directory, and the ones that users may see. Functions
// without state.
#ifndef RANKPROBE_WEB_JOBS_JOB_FILES_H_
#define RANKPROBE_WEB_JOBS_JOB_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/jobs.pb.h"

namespace rankprobe {

// Returns the bytes of regular files; links are not followed, and files that
// are deleted meanwhile do not count.
uint64_t BytesBelow(const std::string& directory);
// Returns the first files below `directory`, sorted by name.
std::vector<v1::JobFile> FilesBelow(const std::string& directory);
// Hides the paths of the job's directory in `text`: for a fetched dump the part
// after its temporary directory is shown, for a result its name.
std::string Shown(absl::string_view text, const std::string& directory);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_FILES_H_
