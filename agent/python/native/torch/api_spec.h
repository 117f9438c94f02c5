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

// Arguments by position and by name, for they may be given either way.
struct ArgumentSet {
  std::vector<int> positions;
  std::vector<std::string> names;

  bool empty() const { return positions.empty() && names.empty(); }
  bool Has(int position) const;
  bool Has(std::string_view name) const;
};

struct ApiSpec {
  std::string prefix, op;
  // Its outputs are its arguments after the call.
  bool distributed = false;
  // It writes into its arguments.
  bool in_place = false;
  // It may write into any argument without telling the version counter.
  bool writes_arguments = false;
  // Its backward is not recorded when the argument `p` is 0.
  bool dropout = false;
  // Mere receive buffers.
  ArgumentSet ignored;
  // Arguments that its schema says are written.
  ArgumentSet written;
  // Where it returns nothing its outputs are those after the call.
  bool gives_written = false;
  // Places in the memory of this process, as numbers: no data.
  ArgumentSet addresses;
  bool returns_address = false;
  // Memory of more than this call, too large to be read each time.
  ArgumentSet caches;
  // Output positions that are not recorded.
  std::vector<int> ignored_outputs;
};

// Says of the tensors of a phase of inputs which the operator writes.
void MarkWritten(const ApiSpec& spec, v1::CallPhase* phase);

// What stands in the place of an argument that is not to be read; null: it is.
const char* NotRecorded(const ApiSpec& spec, int position);
const char* NotRecorded(const ApiSpec& spec, std::string_view name);
PyValue NotRecordedValue(const char* why);
inline constexpr char kAnAddress[] = "not recorded: an address";
inline constexpr char kACache[] =
    "not recorded: a cache, which holds other requests too";

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_SPEC_H_
