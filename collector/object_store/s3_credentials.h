// SPDX-License-Identifier: Apache-2.0
// Credentials of a store from the usual places: the environment
// (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), else the files
// ~/.aws/credentials and ~/.aws/config (or AWS_SHARED_CREDENTIALS_FILE,
// AWS_CONFIG_FILE) under a profile. Never logged, never in an error.
// Pure functions over the environment and a FileSystem.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_S3_CREDENTIALS_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_S3_CREDENTIALS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/object_store/s3_location.h"
#include "collector/object_store/sigv4.h"
#include "common/io/file_system.h"

namespace rankprobe {

// FAILED_PRECONDITION names the places that were searched. An empty `profile`
// means the environment's keys first, then "default"; a named profile is read
// from the files only.
absl::StatusOr<SigV4Credentials> LoadS3Credentials(
    const std::string& profile, const EnvironmentFn& environment,
    FileSystem* file_system);

// Returns the keys of one section of such a file: "[NAME]" or "[profile NAME]".
std::map<std::string, std::string> ParseProfile(absl::string_view text,
                                                absl::string_view profile);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_S3_CREDENTIALS_H_
