// SPDX-License-Identifier: Apache-2.0
// Heads of a run's logs: the number and the digest of a log's newest entry, in
// the key of an object next to the names of the runs,
//   v1/heads/RUN/LOG-NUMBER-DIGEST
// so that one listing distinguishes a log that ends from one that was
// truncated. The head is put after the entry, and the one before it is deleted
// then: a log may be further than its head, never less far.
// Thread-safe: functions; several may advance one head.
#ifndef RANKPROBE_COLLECTOR_SEALED_LOG_HEADS_H_
#define RANKPROBE_COLLECTOR_SEALED_LOG_HEADS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/object_store/object_store.h"

namespace rankprobe::sealed {

inline constexpr absl::string_view kHeadsPrefix = "v1/heads/";

struct LogHead {
  uint64_t sequence = 0;
  // XXH3-128 of the entry's bytes, 16 bytes.
  std::string digest;
};

// Returns the XXH3-128 of the bytes of an entry.
std::string EntryDigest(absl::string_view bytes);

// Returns the heads by log. Keys that are not heads are skipped.
absl::StatusOr<std::map<std::string, LogHead>> ReadHeads(
    ObjectStore* store, absl::string_view run_key);

// Advances the head; the object contains the run's name.
absl::Status PutHead(ObjectStore* store, const std::string& run,
                     const std::string& shard, const LogHead& head);

// Returns the key of one head for each run that has any, by the run's key.
absl::StatusOr<std::map<std::string, std::string>> ListHeads(
    ObjectStore* store);

}  // namespace rankprobe::sealed

#endif  // RANKPROBE_COLLECTOR_SEALED_LOG_HEADS_H_
