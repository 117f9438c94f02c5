// A Plan as a Python dict, and the classes of this extension that hooks use.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_PLAN_DICT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_PLAN_DICT_H_

#include <pybind11/pybind11.h>

#include "common/plan.h"

namespace rankprobe {

pybind11::dict PlanDict(const Plan& plan);

// Capture, ModuleCall, api(), parse_config().
void RegisterCapture(pybind11::module_& m);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_PLAN_DICT_H_
