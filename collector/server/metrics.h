// SPDX-License-Identifier: Apache-2.0
// The collector's own metrics in Prometheus' text format. A pure function of
// its input. Names and meanings: docs/operations.md, "Metrics".
#ifndef RANKPROBE_COLLECTOR_SERVER_METRICS_H_
#define RANKPROBE_COLLECTOR_SERVER_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "collector/archive/export_metrics.h"
#include "collector/archive/newest_values.h"
#include "collector/ingest/ingest_metrics.h"
#include "collector/store/store.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

struct MetricsInput {
  const IngestMetrics* ingest = nullptr;
  const ExportMetrics* exports = nullptr;
  v1::ListAgentsResponse agents;
  StoreTotals store;
  GarbageReport garbage;
  uint64_t pending_bytes = 0;
  // Number of ranks whose memory is read.
  uint64_t lanes = 0;
  uint64_t disk_free_bytes = 0;
  // Absent if the disk is not watched.
  std::optional<v1::DiskState> disk;
  bool archive_failed = false;
  uint64_t dropped_audit = 0;
  // Absent if no values are configured.
  std::optional<NewestValues> values;
};

std::string MetricsText(const MetricsInput& input);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_METRICS_H_
