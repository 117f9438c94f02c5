// SPDX-License-Identifier: Apache-2.0
// Looks at every row of an archive, and at the bytes if asked, while it is in
// use. Faults are named with run, step and payload; bytes that are damaged are
// CORRUPT with their place.
// Threads: pure functions over an Index and a PayloadStore, both thread-safe.
#ifndef RANKPROBE_COLLECTOR_STORE_VERIFY_H_
#define RANKPROBE_COLLECTOR_STORE_VERIFY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// Counts a fault; the first 100 are kept in words.
void AddFault(const std::string& text, v1::VerifyReport* report);

struct VerifyHooks {
  // Bytes of the payload (key of table p) fail their checksum in this chunk.
  std::function<void(const std::string& payload_key, const v1::ChunkRow& row)>
      damaged;
  // A payload that was marked as damaged has been read and is right.
  std::function<void(const std::string& payload_key)> sound;
  // Called now and then; its error ends the verification. May be empty.
  std::function<absl::Status(const v1::VerifyReport&)> progress;
};

absl::StatusOr<v1::VerifyReport> VerifyArchive(Index* index,
                                               PayloadStore* payloads,
                                               const v1::VerifyRequest& request,
                                               const VerifyHooks& hooks);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_VERIFY_H_
