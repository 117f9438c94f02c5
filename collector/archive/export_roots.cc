// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/export_roots.h"

#include <climits>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/io/confined_file_system.h"

namespace rankprobe {
namespace {

// Room for names that an export or a backup adds below its directory.
constexpr size_t kNameBytes = 1024;

// Follows links as far as the path exists; no slash at the end. This only
// determines which place is meant: writes go through the confined file system.
std::string Real(const std::string& path, std::error_code* error) {
  std::string real = std::filesystem::weakly_canonical(path, *error).string();
  while (real.size() > 1 && absl::EndsWith(real, "/")) real.pop_back();
  return real;
}

}  // namespace

absl::StatusOr<ExportRoots::Allowed> ExportRoots::Allow(
    const std::string& untrusted) const {
  if (!absl::StartsWith(untrusted, "/") || absl::StrContains(untrusted, '\0')) {
    return absl::InvalidArgumentError(
        "the server directory must be an absolute path");
  }
  std::error_code error;
  const std::string directory = Real(untrusted, &error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat(untrusted, ": ", error.message()));
  }
  if (directory.size() + kNameBytes > PATH_MAX) {
    return absl::InvalidArgumentError(
        "the server directory's path is too long for files in it");
  }
  for (const std::string& root : roots_) {
    const std::string real_root = Real(root, &error);
    const std::string below =
        absl::EndsWith(real_root, "/") ? real_root : real_root + "/";
    if (!error &&
        (directory == real_root || absl::StartsWith(directory, below)))
      return Allowed{real_root, directory};
  }
  return absl::PermissionDeniedError(absl::StrCat(
      untrusted, " is not below an --export-root of the collector",
      roots_.empty() ? " (it has none)"
                     : absl::StrCat(" (", absl::StrJoin(roots_, ", "), ")")));
}

absl::StatusOr<ExportRoots::Places> ExportRoots::Open(
    const std::vector<std::string>& untrusted) const {
  Places places;
  std::vector<std::string> roots;
  for (const std::string& path : untrusted) {
    RP_ASSIGN_OR_RETURN(Allowed allowed, Allow(path));
    RP_RETURN_IF_ERROR(file_system_->CreateDirectories(allowed.root));
    roots.push_back(std::move(allowed.root));
    places.directories.push_back(std::move(allowed.directory));
  }
  RP_ASSIGN_OR_RETURN(places.files, NewConfinedFileSystem(roots));
  return places;
}

}  // namespace rankprobe
