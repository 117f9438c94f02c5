// SPDX-License-Identifier: Apache-2.0
// The records of one process' step, merged for the dump layout.
// Pure function of the archive.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_LOAD_STEP_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_LOAD_STEP_H_

#include "absl/status/statusor.h"
#include "collector/store/archive_reader.h"
#include "dump_format/step_view.h"

namespace rankprobe {

// A call keeps the position of its first phase; the position of a module or of
// parameters_grad is that of its latest phase (docs/formats.md, "Order of
// entries"). `records` gets the number of records.
absl::StatusOr<StepView> LoadStep(ArchiveReader* store, const StepKey& key,
                                  uint64_t* records = nullptr);

// A step of task monitor as dumps that every tool reads: its modules as a dump
// of level L0, values of parameters and of the step as one of level debug.
struct MonitoredStep {
  StepView modules;
  StepView others;
};
MonitoredStep SplitMonitored(const StepView& view);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_LOAD_STEP_H_
