// SPDX-License-Identifier: Apache-2.0
// Special properties of one API, and how they enter its records. Plain values.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_SPEC_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_SPEC_H_

#include <string>
#include <string_view>
#include <vector>

#include "agent/python/native/torch/py_value.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Arguments by position and by name, because they may be passed either way.
struct ArgumentSet {
  std::vector<int> positions;
  std::vector<std::string> names;

  bool empty() const { return positions.empty() && names.empty(); }
  bool Has(int position) const;
  bool Has(std::string_view name) const;
};

struct ApiSpec {
  std::string prefix, op;
  // Whether its outputs are its arguments after the call.
  bool distributed = false;
  // Whether it writes into its arguments.
  bool in_place = false;
  // Whether it may write into any argument without increasing its version
  // counter.
  bool writes_arguments = false;
  // Whether its backward is not recorded if the argument `p` is 0.
  bool dropout = false;
  // Arguments that are only receive buffers.
  ArgumentSet ignored;
  // Arguments that are written according to its schema.
  ArgumentSet written;
  // If it returns nothing, its outputs are the written arguments.
  bool gives_written = false;
  // Arguments that are addresses in this process, as numbers, and not data.
  ArgumentSet addresses;
  bool returns_address = false;
  // Arguments with memory of other calls too, too large to be read each time.
  ArgumentSet caches;
  // Output positions that are not recorded.
  std::vector<int> ignored_outputs;
};

// Marks the tensors of a phase of inputs that the operator writes.
void MarkWritten(const ApiSpec& spec, v1::CallPhase* phase);

// The replacement for an argument that must not be read; null if it may be
// read.
const char* NotRecorded(const ApiSpec& spec, int position);
const char* NotRecorded(const ApiSpec& spec, std::string_view name);
PyValue NotRecordedValue(const char* why);
inline constexpr char kAnAddress[] = "not recorded: an address";
inline constexpr char kACache[] =
    "not recorded: a cache, which holds other requests too";

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_SPEC_H_
