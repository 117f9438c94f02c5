// SPDX-License-Identifier: Apache-2.0
#include "dump_format/read_manifest.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/io/whole_file.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20;

// The name of the first of these sections that exists and is not a list of
// objects; nullopt if there is none.
std::optional<absl::string_view> DamagedSection(const JsonValue& manifest) {
  for (const absl::string_view key : {"files", "gaps", "earlier_runs"}) {
    const JsonValue* const section = manifest.Find(key);
    if (section == nullptr) continue;
    if (!section->is_array()) return key;
    for (const JsonValue& item : section->items()) {
      if (!item.is_object()) return key;
      if (DamagedSection(item).has_value()) return key;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<bool> ReadManifest(FileSystem* file_system,
                                  const std::string& directory,
                                  JsonDocument* document) {
  const std::string path = directory + "/manifest.json";
  if (!file_system->Exists(path)) return false;
  RP_ASSIGN_OR_RETURN(std::string text,
                      ReadWholeFile(file_system, path, kMaxManifestBytes));
  if (!document->Parse(std::move(text)).ok())
    return absl::InvalidArgumentError(path + ": is not JSON");
  if (!document->root().is_object())
    return absl::InvalidArgumentError(path + ": is not an object");
  // A gap that is not counted would make a step look complete.
  if (const auto section = DamagedSection(document->root())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", *section, " is not a list of objects"));
  }
  return true;
}

std::set<std::string> PlacesOfManifest(const JsonValue& manifest) {
  std::set<std::string> places;
  if (const JsonValue* const files = manifest.Find("files"); files != nullptr) {
    for (const JsonValue& file : files->items()) {
      const JsonValue* const path = file.Find("path");
      if (path == nullptr || !path->is_string()) continue;
      const std::vector<absl::string_view> parts =
          absl::StrSplit(path->text, '/');
      if (parts.size() > 2)
        places.insert(absl::StrCat(parts[0], "/", parts[1]));
    }
  }
  return places;
}

}  // namespace rankprobe
