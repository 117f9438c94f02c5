// SPDX-License-Identifier: Apache-2.0
// Names of entries and files. Pure functions. Names come from a model: they are
// data, never trusted as paths.
#ifndef RANKPROBE_COMMON_RECORDS_ENTRY_NAMES_H_
#define RANKPROBE_COMMON_RECORDS_ENTRY_NAMES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

enum class EntryKind {
  kOther,
  kApi,             // Prefix.op.N.forward|backward
  kModule,          // Module.path.Class.forward|backward.N
  kParametersGrad,  // Module.path.Class.parameters_grad[.K]
  kDebug,           // name.N.debug
};

EntryKind ClassifyEntry(absl::string_view entry);

// "Functional.relu.0.forward".
std::string ApiEntry(absl::string_view prefix, absl::string_view op,
                     int64_t number, bool forward);

// `module` is "Module.{path}.{Class}": "Module.conv1.Conv2d.forward.0".
std::string ModuleEntry(absl::string_view module, int64_t number, bool forward);

std::string ParametersGradEntry(absl::string_view module, int64_t number);

// "Module.conv1.Conv2d" of a module or parameters_grad entry; empty otherwise.
absl::string_view ModuleOfEntry(absl::string_view entry);

// The op of an API entry: "relu"; empty for other entries.
absl::string_view OpOfEntry(absl::string_view entry);

bool IsBackwardEntry(absl::string_view entry);

// A safe, unique file name for `name` + `extension`: no separator, control
// byte, "." or "..", at most 255 bytes. Harmless names come back unchanged;
// others carry a hash of the true name, so different names stay different.
std::string EscapeFileName(absl::string_view name, absl::string_view extension);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_ENTRY_NAMES_H_
