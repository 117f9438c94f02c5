// SPDX-License-Identifier: Apache-2.0
// run:NAME for verbs that take --run NAME: commands that read dumps accept runs
// in this form, and users do not remember which commands these are. Pure
// functions.
#ifndef RANKPROBE_CLI_FLAGS_RUN_WORDS_H_
#define RANKPROBE_CLI_FLAGS_RUN_WORDS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rankprobe {

// Returns `words` with "--run NAME" instead of run:NAME, and with the flags for
// steps instead of run:NAME@STEP or @FIRST-LAST if the verb has these flags.
// Returns INVALID_ARGUMENT for several runs, and for steps if the verb does not
// take any.
absl::StatusOr<std::vector<std::string>> WithRunFlags(
    const CLI::App& root, std::vector<std::string> words);

// Returns what to write instead of words that a verb with --run did not expect;
// empty if it has no such flag or there is no advice.
std::string RunAdvice(const CLI::App& verb);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_RUN_WORDS_H_
