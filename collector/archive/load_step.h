// SPDX-License-Identifier: Apache-2.0
// Merges the records of one process' step into what the dump layout says of it.
// Pure function of the archive.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_LOAD_STEP_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_LOAD_STEP_H_

#include "absl/status/statusor.h"
#include "collector/store/archive_reader.h"
#include "dump_format/step_view.h"

namespace rankprobe {

// A call keeps the place of its first phase; a module's or parameters_grad's
// place is that of its latest (docs/formats.md, "Order of entries"). `records`:
// how many there were.
absl::StatusOr<StepView> LoadStep(ArchiveReader* store, const StepKey& key,
                                  uint64_t* records = nullptr);

// A step of task monitor as dumps that every tool reads: its modules as one of
// level L0, what belongs to parameters and to the step as one of level debug.
struct MonitoredStep {
  StepView modules;
  StepView others;
};
MonitoredStep SplitMonitored(const StepView& view);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_LOAD_STEP_H_
