// SPDX-License-Identifier: Apache-2.0
// A flag that a command line has and the program does not. Pure functions.
#ifndef RANKPROBE_COMMON_MANUAL_UNKNOWN_FLAG_H_
#define RANKPROBE_COMMON_MANUAL_UNKNOWN_FLAG_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace rankprobe {

// Of an app that has parsed: its first flag that is not known, with the one that
// may have been meant. `path`: the verbs that lead to `app`, or empty.
std::optional<std::string> UnknownFlag(const CLI::App& app,
                                       const std::string& path);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_MANUAL_UNKNOWN_FLAG_H_
