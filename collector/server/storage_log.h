// SPDX-License-Identifier: Apache-2.0
// Log lines about a disk that fails or is full, each once when it begins and, for
// a full disk, once when it ends. Used by one thread. Nothing fails.
#ifndef RANKPROBE_COLLECTOR_SERVER_STORAGE_LOG_H_
#define RANKPROBE_COLLECTOR_SERVER_STORAGE_LOG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collector/server/server_config.h"
#include "common/base/clock.h"
#include "common/base/logger.h"

namespace rankprobe {

class StorageLog {
 public:
  // The arguments outlive it.
  StorageLog(const ServerConfig* config, const Clock* clock,
             const Logger* logger)
      : config_(config), clock_(clock), logger_(logger) {}

  // Nothing is written after an error, so only the first one is logged.
  void CheckEvents(const absl::Status& status);
  // `retries`: how often commits have waited for disk space.
  void CheckRoom(uint64_t retries);

 private:
  const ServerConfig* const config_;
  const Clock* const clock_;
  const Logger* const logger_;
  bool events_failed_ = false;
  uint64_t known_retries_ = 0;
  int64_t no_room_at_ns_ = 0;
  bool waits_for_room_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_STORAGE_LOG_H_
