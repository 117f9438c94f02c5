// SPDX-License-Identifier: Apache-2.0
// Names of dumps as the user gave them, for the temporary directories that hold what
// was made of them. Everything that is printed passes WithGivenNames(): whoever
// writes a text with a path need not know where the dump came from. Not thread-safe.
#ifndef RANKPROBE_CLI_OUTPUT_GIVEN_NAMES_H_
#define RANKPROBE_CLI_OUTPUT_GIVEN_NAMES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// What lies in the temporary directory, and so how a place in it is named.
enum class GivenForm {
  // A run: "run:NAME@STEP/rankR".
  kRun,
  // Steps in which the ranks were put together or aligned: "GIVEN/stepN".
  kSteps,
  // The same, of one step that was given by its directory: "GIVEN".
  kOneStep,
};

// From now on. `directory` is not used again under another name.
void NameTemporary(std::string directory, std::string given, GivenForm form);

std::string WithGivenNames(absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_GIVEN_NAMES_H_
