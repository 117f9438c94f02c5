// The collector's own figures in Prometheus' text format. A pure function of
// what it is given. Names and meanings: docs/operations.md, "Metrics".
#ifndef RANKPROBE_COLLECTOR_METRICS_H_
#define RANKPROBE_COLLECTOR_METRICS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "collector/ingest/ingest_metrics.h"
#include "collector/store/store.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

struct ExportMetrics {
  std::atomic<uint64_t> failed{0};
  std::atomic<uint64_t> bytes{0};
  DurationHistogram seconds;
};

struct MetricsInput {
  const IngestMetrics* ingest = nullptr;
  const ExportMetrics* exports = nullptr;
  v1::ListAgentsResponse agents;
  StoreTotals store;
  GarbageReport garbage;
  uint64_t pending_bytes = 0;
  uint64_t disk_free_bytes = 0;
  bool archive_failed = false;
};

std::string MetricsText(const MetricsInput& input);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_METRICS_H_
