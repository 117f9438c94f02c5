// SPDX-License-Identifier: Apache-2.0
// Keys of objects in the store (docs/storage.md, "Sealed archive"), and the
// bytes of an entry of the log. Keys do not contain names of users. Pure
// functions.
#ifndef RANKPROBE_COLLECTOR_SEALED_SEALED_KEYS_H_
#define RANKPROBE_COLLECTOR_SEALED_SEALED_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe::sealed {

inline constexpr uint64_t kMaxEntryBytes = 32 << 20;
// Format versions that this reader understands: sets, and maintenance of a run.
inline constexpr uint32_t kFormat = 1;
inline constexpr uint32_t kMaintenanceFormat = 2;
// Name of each run's log of maintenance; it sorts before all others.
inline constexpr char kMaintenanceShard[] = "00000000000000000000000000000000";

// Returns 32 hexadecimal digits derived from the name, so that independent
// collectors use the same key.
std::string RunKey(absl::string_view run);

inline constexpr char kNamesPrefix[] = "v1/names/";
std::string NameKey(absl::string_view run_key);
std::string RecordsPrefix(absl::string_view run_key);
std::string PacksPrefix(absl::string_view run_key);
std::string RecordsKey(absl::string_view run_key, absl::string_view name);
std::string PackKey(absl::string_view run_key, absl::string_view name);
// Returns whether the key has the form of an object of records or a pack of
// this run.
bool IsObjectKey(absl::string_view run_key, absl::string_view key);
// Keys that say that a collector puts objects of the run. Put before its first
// object.
std::string ShardsPrefix(absl::string_view run_key);
std::string ShardKey(absl::string_view run_key, absl::string_view shard);
// Prefix of everything of the run.
std::string RunPrefix(absl::string_view run_key);
// Prefix of the logs of all shards of the run, or of one.
std::string LogPrefix(absl::string_view run_key);
std::string LogPrefix(absl::string_view run_key, absl::string_view shard);
std::string LogKey(absl::string_view run_key, absl::string_view shard,
                   uint64_t sequence);

struct LogPlace {
  std::string shard;
  uint64_t sequence = 0;
};
// Returns nothing if it is not a key of a log entry of this run.
std::optional<LogPlace> ParseLogKey(absl::string_view run_key,
                                    absl::string_view key);

// Returns whether the text is 32 lower-case hexadecimal digits: a shard, a
// run's key, an object's name.
bool IsHexName(absl::string_view text);

std::string EncodeEntry(const v1::SealedLogEntry& entry);
// Returns whether the entry is one that older readers must not skip.
bool IsMaintenance(const v1::SealedLogEntry& entry);
// DATA_LOSS; FAILED_PRECONDITION for a newer format.
absl::StatusOr<v1::SealedLogEntry> DecodeEntry(absl::string_view bytes);

}  // namespace rankprobe::sealed

#endif  // RANKPROBE_COLLECTOR_SEALED_SEALED_KEYS_H_
