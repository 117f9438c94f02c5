// SPDX-License-Identifier: Apache-2.0
// Python functions that begin and end a step in which nothing is recorded.
//
// They bypass pybind11: after a training step, which replaces the contents of
// the processor's caches, a call of a bound method costs 12 us, nearly all of
// them in pybind11. They do not keep the recorder alive and return False
// without it. Call with the GIL; they never raise.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_IDLE_CALLS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_IDLE_CALLS_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

// Returns (start_idle, step_idle), see Recorder::StartIdle and StepIdle.
pybind11::tuple MakeIdleCalls(const std::shared_ptr<Recorder>& recorder);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_IDLE_CALLS_H_
