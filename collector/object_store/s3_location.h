// SPDX-License-Identifier: Apache-2.0
// Location of a bucket: an s3:// URL, with defaults from the environment.
// Pure functions.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_S3_LOCATION_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_S3_LOCATION_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

// Returns a variable of the environment; nothing if it is not set.
using EnvironmentFn =
    std::function<std::optional<std::string>(const std::string&)>;
EnvironmentFn ProcessEnvironment();

struct S3Location {
  std::string bucket;
  // Without leading or trailing slashes; may be empty.
  std::string prefix;
  std::string region;
  // "https://s3.eu-west-1.amazonaws.com": scheme, host and port.
  std::string endpoint;
  // The bucket is in the path (most stores except Amazon's), else in the host.
  bool path_style = false;
  // Profile in the files of credentials.
  std::string profile;
  // PEM; empty: the system's.
  std::string ca_file;

  // "s3://bucket/prefix".
  std::string Name() const;
  // Returns the Host header, and the path of a key.
  std::string Host() const;
  std::string PathOf(absl::string_view key) const;
  std::string Url() const;
};

// Parses
// s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME&addressing=path|virtual&
// profile=NAME&ca=FILE&insecure=1]. Missing options are taken from
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
// AWS_PROFILE and AWS_CA_BUNDLE. INVALID_ARGUMENT: one line that says what is
// valid; also for plain http beyond loopback without insecure=1.
absl::StatusOr<S3Location> ParseS3Location(absl::string_view url,
                                           const EnvironmentFn& environment);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_S3_LOCATION_H_
