// SPDX-License-Identifier: Apache-2.0
// A Plan, and the result of parsing a config, as Python dicts.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_PLAN_DICT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_PLAN_DICT_H_

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "common/config/plan.h"

namespace rankprobe {

pybind11::dict PlanDict(const Plan& plan);

// Returns {"plan": {..}, "warnings": [..]}; raises ValueError with every fault.
pybind11::dict ParseConfigDict(const std::string& config_json);

// Returns the warnings; raises ValueError with every fault and unknown key,
// each with its place in the file.
std::vector<std::string> CheckConfigFile(const std::string& file,
                                         const std::string& text);

// Returns {prefix: [names]}; raises ValueError.
pybind11::dict ParseApiListDict(const std::string& text);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_PLAN_DICT_H_
