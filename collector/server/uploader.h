// SPDX-License-Identifier: Apache-2.0
// The thread of a leaf that seals ended steps and stores them
// (collector/sealed), with lower priority than ingest and queries.
// Ownership: one per server; sealer and logger outlive it. Failure: logged when
// it begins, and once a minute while it lasts; the next round tries again. If
// the sealer is fenced, that is logged and the thread ends: all data is kept
// here.
#ifndef RANKPROBE_COLLECTOR_SERVER_UPLOADER_H_
#define RANKPROBE_COLLECTOR_SERVER_UPLOADER_H_

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collector/sealed/sealer.h"
#include "common/base/clock.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"

namespace rankprobe {

class Uploader {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(10);
    // Time limit after Stop to store what is ready.
    absl::Duration last_round = absl::Seconds(5);
    // Time between two attempts within it.
    absl::Duration last_again = absl::Milliseconds(100);
  };

  Uploader(const Options& options, Sealer* sealer, const Clock* clock,
           const Logger* logger);
  ~Uploader();

  void Start();
  // Stores what is ready, within last_round and the time of the current
  // request.
  void Stop();

 private:
  void Run();
  // Returns false if the sealer is fenced.
  bool Round(const std::function<bool()>& stop);
  void Tell(const absl::Status& status);

  const Options options_;
  Sealer* const sealer_;
  const Clock* const clock_;
  const Logger* const logger_;
  // Used by the thread only.
  bool failing_ = false;
  int64_t told_ns_ = 0;
  MonotonicEvent stop_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_UPLOADER_H_
