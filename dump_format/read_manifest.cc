// SPDX-License-Identifier: Apache-2.0
#include "dump_format/read_manifest.h"

#include <cstdint>
#include <utility>

#include "common/base/status_macros.h"
#include "common/io/whole_file.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20;

}  // namespace

absl::StatusOr<bool> ReadManifest(FileSystem* file_system,
                                  const std::string& directory,
                                  JsonDocument* document) {
  const std::string path = directory + "/manifest.json";
  if (!file_system->Exists(path)) return false;
  RP_ASSIGN_OR_RETURN(std::string text,
                      ReadWholeFile(file_system, path, kMaxManifestBytes));
  if (!document->Parse(std::move(text)).ok())
    return absl::InvalidArgumentError(path + ": is no JSON");
  return true;
}

}  // namespace rankprobe
