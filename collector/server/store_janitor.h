// SPDX-License-Identifier: Apache-2.0
// The thread of `--role janitor`: periodically cleans the object store and
// merges small sets (collector/sealed/store_cleaner.h, store_merger.h).
// Ownership: cleaner, merger and logger outlive it. Failure: logged when it
// begins and ends; the next round tries again.
#ifndef RANKPROBE_COLLECTOR_SERVER_STORE_JANITOR_H_
#define RANKPROBE_COLLECTOR_SERVER_STORE_JANITOR_H_

#include <thread>

#include "absl/time/time.h"
#include "collector/sealed/store_cleaner.h"
#include "collector/sealed/store_merger.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"

namespace rankprobe {

class StoreJanitor {
 public:
  // If `merger` is null, nothing is merged.
  StoreJanitor(absl::Duration interval, StoreCleaner* cleaner,
               StoreMerger* merger, const Logger* logger)
      : interval_(interval),
        cleaner_(cleaner),
        merger_(merger),
        logger_(logger) {}
  ~StoreJanitor() { Stop(); }

  void Start();
  // Waits for the run that is being cleaned.
  void Stop();

 private:
  void Run();
  void Round();

  const absl::Duration interval_;
  StoreCleaner* const cleaner_;
  StoreMerger* const merger_;
  const Logger* const logger_;
  // Used by the thread only.
  bool failing_ = false, waits_ = false;
  MonotonicEvent stop_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_STORE_JANITOR_H_
