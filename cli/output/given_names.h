// SPDX-License-Identifier: Apache-2.0
// Names of dumps as the user gave them, for the temporary directories that are
// derived from them. All printed text passes through WithGivenNames(), so code
// that formats a path does not need to know where the dump came from. Not
// thread-safe.
#ifndef RANKPROBE_CLI_OUTPUT_GIVEN_NAMES_H_
#define RANKPROBE_CLI_OUTPUT_GIVEN_NAMES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Content of a temporary directory, which determines how a path in it is named.
enum class GivenForm {
  // A run: "run:NAME@STEP/rankR".
  kRun,
  // Steps whose ranks were joined or aligned: "GIVEN/stepN".
  kSteps,
  // The same, for one step that was given by its directory: "GIVEN".
  kOneStep,
};

// Registers a name for all later output. `directory` must not be registered
// again under another name.
void NameTemporary(std::string directory, std::string given, GivenForm form);

// Returns `text` with the given names instead of temporary directories.
std::string WithGivenNames(absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_GIVEN_NAMES_H_
