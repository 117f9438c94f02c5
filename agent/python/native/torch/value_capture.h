// SPDX-License-Identifier: Apache-2.0
// Records values that are no call's: those saved at level debug, those of the
// monitor, and what a step says of replicas and of its run.
//
// Ownership: the Capture's. Threads: the GIL is held on entry. Failure: that of
// Capture::Guarded.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_VALUE_CAPTURE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_VALUE_CAPTURE_H_

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "agent/runtime/recorder/saved_values.h"

namespace rankprobe {

class Capture;

class ValueCapture {
 public:
  explicit ValueCapture(Capture* capture) : capture_(capture) {}

  std::optional<SavedValue> Save(const std::string& name,
                                 const pybind11::object& value,
                                 const pybind11::object& skeleton);
  void SaveGradient(const SavedValue& value, const std::string& path,
                    const pybind11::object& gradient);
  // For task monitor: records values by name as one record. With the norms of
  // "update" and "param", of which the second is not 0, their "ratio" is added.
  // Returns the norm of "grad" if it is known: the value exists, and is not on
  // a device.
  std::optional<double> SaveMonitored(const std::string& name,
                                      const pybind11::dict& values);
  // Waits for tensors on devices.
  void ReportReplica(const pybind11::list& tensors);
  // Facts are (section, name, value), in UTF-8.
  void RecordFacts(
      const std::vector<std::tuple<std::string, std::string, std::string>>&
          facts);
  // Tokens are (request, index, id, log probability, entropy); see
  // StepReports::ReportTokens.
  void ReportTokens(const std::vector<std::tuple<std::string, int64_t, int64_t,
                                                 double, double>>& tokens);
  // See ValueReader::Digest; the GIL is held while `limit_bytes` are read.
  std::string Digest(const pybind11::object& tensor, uint64_t limit_bytes);

 private:
  Capture* const capture_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_VALUE_CAPTURE_H_
