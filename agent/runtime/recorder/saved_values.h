// SPDX-License-Identifier: Apache-2.0
// Records the values that a program saves at level debug, with their gradients,
// and those of the monitor.
//
// Ownership: the Recorder's. Thread-safe; builders run with the recorder's lock
// held and must not call the recorder. Never fails.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_SAVED_VALUES_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_SAVED_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/runtime/recorder/recorded_call.h"
#include "agent/runtime/recorder/recorder_core.h"

namespace rankprobe {

// Identifies a saved value for SaveGradient.
struct SavedValue {
  std::string gradient_entry;
  uint64_t step_generation = 0;
};

class SavedValues {
 public:
  // `core` must outlive this object.
  explicit SavedValues(RecorderCore* core) : core_(core) {}

  // Returns nullopt if the plan does not record it. `build_gradient` builds the
  // skeleton of its gradients (nulls); null if it has none.
  std::optional<SavedValue> Save(absl::string_view name,
                                 const BuildValue& build,
                                 const BuildValue& build_gradient);
  // Fills one leaf of the skeleton. `path` has positions in nested lists and
  // maps, joined by '.'; empty: the complete value.
  void SaveGradient(const SavedValue& value, absl::string_view path,
                    const BuildValue& build);
  // How tensors outside of calls are read: saved values and gradients.
  RecordedCall::Needs Needs() const;

 private:
  RecorderCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_SAVED_VALUES_H_
