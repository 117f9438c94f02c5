// CollectorCalls: config changes asked for by the training process.
// The GIL is released while waiting; errors are Python exceptions.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_COLLECTOR_CALLS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_COLLECTOR_CALLS_H_

#include <pybind11/pybind11.h>

namespace rankprobe {

void RegisterCollectorCalls(pybind11::module_& m);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_COLLECTOR_CALLS_H_
