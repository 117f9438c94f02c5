// SPDX-License-Identifier: Apache-2.0
// The thread that rolls up steps which have ended, and then makes the rows of
// summaries, behind everything else: it gives way to ingest and to questions.
// Ownership: one per server; store and logger outlive it. Failure: logged;
// questions about such steps are answered from their records.
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
  // `interval`: between two looks for steps.
  Roller(Store* store, const Logger* logger, absl::Duration interval);
  ~Roller();

  void Start();
  // Waits for the step under way; what still waits is done at the next start.
  void Stop();

 private:
  void Run();

  const Logger* const logger_;
  const absl::Duration interval_;
  // Of the thread alone.
  RollupMaker maker_;
  SummaryMaker summaries_;
  MonotonicEvent stop_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_ROLLER_H_
