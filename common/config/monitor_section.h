// SPDX-License-Identifier: Apache-2.0
// Fields of the section "monitor" of config.json besides those of every task:
// which steps and which values (docs/monitor.md). A free function of the
// parser's thread; faults are added to the parser's.
#ifndef RANKPROBE_COMMON_CONFIG_MONITOR_SECTION_H_
#define RANKPROBE_COMMON_CONFIG_MONITOR_SECTION_H_

#include "common/config/config_reader.h"
#include "common/config/plan.h"

namespace rankprobe {

// `section` may be null. If it is not an object, this function reports nothing,
// because the parser already has.
void ParseMonitorSection(const rapidjson::Value* section, ConfigFaults* faults,
                         Plan* plan);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_MONITOR_SECTION_H_
