// SPDX-License-Identifier: Apache-2.0
// The version of this build: the one in CMakeLists.txt, project(VERSION). The
// programs, the agents and the Python package all report it; only version.cc is
// recompiled when it changes.
#ifndef RANKPROBE_COMMON_BASE_VERSION_H_
#define RANKPROBE_COMMON_BASE_VERSION_H_

namespace rankprobe {

// Three numbers, "1.2.3". Never null.
const char* Version();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_VERSION_H_
