// SPDX-License-Identifier: Apache-2.0
// Facts about a step that a rank wrote into its run_card.json. Thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_CARD_SECTIONS_H_
#define RANKPROBE_CLI_CLIENT_CARD_SECTIONS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "dump_format/json_value.h"

namespace rankprobe {

// Calls `read` with the section of each card that has one. Omits places without
// a card and cards that are not JSON. Returns the error of a card that cannot
// be read.
absl::Status ReadCardSections(
    FileSystem* file_system, const DumpLayout& layout, absl::string_view name,
    absl::FunctionRef<void(const DumpPlace&, const JsonValue&)> read);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_CARD_SECTIONS_H_
