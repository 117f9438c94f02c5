// SPDX-License-Identifier: Apache-2.0
#include "collector/server/storage_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace rankprobe {
namespace {

// Longer than the retry interval of commits that wait for room, which is half a
// second.
constexpr absl::Duration kRoomAgain = absl::Seconds(2);

}  // namespace

void StorageLog::CheckEvents(const absl::Status& status) {
  if (events_failed_ || status.ok()) return;
  events_failed_ = true;
  logger_->Error("events_not_written",
                 {{"status", status.ToString()},
                  {"what_to_do",
                   "repair the disk and restart rankprobed; "
                   "until then events are in memory only"}});
}

void StorageLog::CheckRoom(uint64_t retries) {
  const int64_t now_ns = clock_->MonotonicNanos();
  if (retries != known_retries_) {
    known_retries_ = retries;
    no_room_at_ns_ = now_ns;
    if (std::exchange(waits_for_room_, true)) return;
    logger_->Log(
        Logger::Severity::kWarning, "no_room",
        {{"data_dir", config_->data_dir},
         {"min_free_bytes", absl::StrCat(config_->min_free_bytes)},
         {"what_happens", "what ranks send waits, nothing is stored"},
         {"what_to_do",
          "free the disk, or delete steps or runs (rankprobe delete)"}});
  } else if (waits_for_room_ &&
             now_ns - no_room_at_ns_ > absl::ToInt64Nanoseconds(kRoomAgain)) {
    waits_for_room_ = false;
    logger_->Info("room_again");
  }
}

}  // namespace rankprobe
