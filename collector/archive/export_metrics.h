// SPDX-License-Identifier: Apache-2.0
// Counters of exports, read by the metrics endpoint. Any thread.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_METRICS_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_METRICS_H_

#include <atomic>
#include <cstdint>

#include "common/base/duration_histogram.h"

namespace rankprobe {

struct ExportMetrics {
  std::atomic<uint64_t> failed{0};
  std::atomic<uint64_t> bytes{0};
  DurationHistogram seconds;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_METRICS_H_
