// SPDX-License-Identifier: Apache-2.0
// The store that a flag names: "s3://bucket/prefix?.." (s3_location.h), or the
// absolute path of a directory.
// Ownership: the store owns what it needs except the file system and the clock,
// which outlive it. Failure: INVALID_ARGUMENT, FAILED_PRECONDITION (no libcurl,
// no credentials), NOT_FOUND (no such directory). Nothing is sent yet.
//
// Below a directory no symbolic link is followed, whichever user created it.
// The name of the directory itself may be one, which is followed in each call:
// a directory may disappear and return (after a remount), and every call is
// UNAVAILABLE meanwhile.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_OPEN_OBJECT_STORE_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_OPEN_OBJECT_STORE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/object_store/object_store.h"
#include "collector/object_store/s3_location.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct ObjectStoreOptions {
  std::string url;
  // Creates a missing directory: for writers. Readers get an error.
  bool make_directory = false;
  // For an s3:// store: limits for one attempt and for a call with all
  // attempts.
  absl::Duration request_timeout = absl::Seconds(20);
  absl::Duration call_timeout = absl::Seconds(60);
  // Waits before another attempt; returns false to stop. Empty: sleeps.
  std::function<bool(absl::Duration)> sleep;
};

// Checks only the form, for flags.
absl::Status CheckObjectStoreUrl(const std::string& url,
                                 const EnvironmentFn& environment);

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(
    const ObjectStoreOptions& options, const EnvironmentFn& environment,
    FileSystem* file_system, const Clock* clock);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_OPEN_OBJECT_STORE_H_
