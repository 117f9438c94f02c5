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

// Bytes of regular files; no link is followed, and files that are removed
// meanwhile do not count.
uint64_t BytesBelow(const std::string& directory);
// The first ones by their names below `directory`.
std::vector<v1::JobFile> FilesBelow(const std::string& directory);
// Names of the job's own places are no one's: of a fetched dump the part behind
// its temporary directory is shown, of a result its name.
std::string Shown(absl::string_view text, const std::string& directory);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_FILES_H_
