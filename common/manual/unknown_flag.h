// SPDX-License-Identifier: Apache-2.0
// A flag that a command line has and the program does not. Pure functions.
#ifndef RANKPROBE_COMMON_MANUAL_UNKNOWN_FLAG_H_
#define RANKPROBE_COMMON_MANUAL_UNKNOWN_FLAG_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace rankprobe {

// The first unknown flag of an app that has parsed, with the most similar known
// one. `path`: the verbs that lead to `app`, or empty.
std::optional<std::string> UnknownFlag(const CLI::App& app,
                                       const std::string& path);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_MANUAL_UNKNOWN_FLAG_H_
