// SPDX-License-Identifier: Apache-2.0
// The store that a flag names: "s3://bucket/prefix?.." (s3_location.h), or the
// absolute path of a directory.
// Ownership: what is opened keeps what it needs but the file system and the clock,
// which outlive it. Failure: INVALID_ARGUMENT, FAILED_PRECONDITION (no libcurl, no
// credentials), NOT_FOUND (no such directory). Nothing is sent yet.
//
// Below a directory no symbolic link is followed, whoever plants it; the name of the
// directory itself may be one, which is followed with each call: a directory may go
// and come back (mounted anew), and every call is UNAVAILABLE meanwhile.
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
  // A directory that is not there is made: of who stores. Who reads is told.
  bool make_directory = false;
  // Of an s3:// store: of one attempt and of a call with all attempts.
  absl::Duration request_timeout = absl::Seconds(20);
  absl::Duration call_timeout = absl::Seconds(60);
  // Waits before another attempt; false: there is to be none. Empty: sleeps.
  std::function<bool(absl::Duration)> sleep;
};

// Only what it looks like: for flags.
absl::Status CheckObjectStoreUrl(const std::string& url,
                                 const EnvironmentFn& environment);

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(
    const ObjectStoreOptions& options, const EnvironmentFn& environment,
    FileSystem* file_system, const Clock* clock);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_OPEN_OBJECT_STORE_H_
