// SPDX-License-Identifier: Apache-2.0
// The thread that rolls up steps which have ended, and then makes the rows of
// summaries, with lower priority than ingest and queries.
// Ownership: one per server; store and logger outlive it. Failure: logged;
// queries about such steps read their records.
#ifndef RANKPROBE_COLLECTOR_SERVER_ROLLER_H_
#define RANKPROBE_COLLECTOR_SERVER_ROLLER_H_

#include <thread>

#include "absl/time/time.h"
#include "collector/archive/rollup.h"
#include "collector/archive/summary_reader.h"
#include "collector/store/store.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"

namespace rankprobe {

class Roller {
 public:
  // `interval` is the time between two checks for steps.
  Roller(Store* store, const Logger* logger, absl::Duration interval);
  ~Roller();

  void Start();
  // Waits for the current step; waiting ones are rolled up after the next
  // start.
  void Stop();

 private:
  void Run();

  const Logger* const logger_;
  const absl::Duration interval_;
  // Used by the thread only.
  RollupMaker maker_;
  SummaryMaker summaries_;
  MonotonicEvent stop_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_ROLLER_H_
