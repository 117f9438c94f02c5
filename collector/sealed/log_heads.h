// SPDX-License-Identifier: Apache-2.0
// Heads of a run's logs: the number and the digest of its newest entry, in the
// key of an object beside the names of the runs,
//   v1/heads/RUN/LOG-NUMBER-DIGEST
// so that one listing tells a log that ends from one that was cut. It is put behind
// the entry, and the one before it goes then: a log may be further than its head,
// never less far.
// Thread-safe: functions; several may move one head on.
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

// XXH3-128 of the bytes of an entry.
std::string EntryDigest(absl::string_view bytes);

// By log. What is no head of a log is passed over.
absl::StatusOr<std::map<std::string, LogHead>> ReadHeads(
    ObjectStore* store, absl::string_view run_key);

// Moves it on; the object has the run's name in it.
absl::Status PutHead(ObjectStore* store, const std::string& run,
                     const std::string& shard, const LogHead& head);

// Keys of one head of each run that there is a head of, by the run's key.
absl::StatusOr<std::map<std::string, std::string>> ListHeads(
    ObjectStore* store);

}  // namespace rankprobe::sealed

#endif  // RANKPROBE_COLLECTOR_SEALED_LOG_HEADS_H_
