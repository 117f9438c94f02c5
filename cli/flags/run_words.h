// SPDX-License-Identifier: Apache-2.0
// run:NAME where a verb takes --run NAME: the commands that read dumps are given
// runs so, and a user does not remember which are which. Pure functions.
#ifndef RANKPROBE_CLI_FLAGS_RUN_WORDS_H_
#define RANKPROBE_CLI_FLAGS_RUN_WORDS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rankprobe {

// `words` with "--run NAME" in place of a run:NAME, and with the flags for its steps
// in place of run:NAME@STEP or @FIRST-LAST, as far as the verb has these flags.
// INVALID_ARGUMENT for several runs, and for steps that the verb does not take.
absl::StatusOr<std::vector<std::string>> WithRunFlags(
    const CLI::App& root, std::vector<std::string> words);

// What to write instead of words that a verb with --run did not expect; empty: it
// has no such flag, or nothing is known.
std::string RunAdvice(const CLI::App& verb);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_RUN_WORDS_H_
