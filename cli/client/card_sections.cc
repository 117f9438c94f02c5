// SPDX-License-Identifier: Apache-2.0
#include "cli/client/card_sections.h"

#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "dump_format/input_files.h"

namespace rankprobe {

absl::Status ReadCardSections(
    FileSystem* file_system, const DumpLayout& layout, absl::string_view name,
    absl::FunctionRef<void(const DumpPlace&, const JsonValue&)> read) {
  for (const DumpPlace& place : layout.places) {
    const std::string path = place.directory + "/run_card.json";
    if (!file_system->Exists(path)) continue;
    RP_ASSIGN_OR_RETURN(std::string text, ReadInput(file_system, path));
    JsonDocument document;
    if (!document.Parse(std::move(text)).ok()) continue;
    const JsonValue* const section = document.root().Find(name);
    if (section != nullptr) read(place, *section);
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
