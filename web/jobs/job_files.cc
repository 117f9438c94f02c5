// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/job_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxListedFiles = 256;

// Calls `take` for each regular file below `directory`, with its relative name
// and its size. Files that were deleted meanwhile are skipped.
void ForEachFileBelow(
    const std::string& directory,
    absl::FunctionRef<void(std::string name, uint64_t bytes)> take) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::recursive_directory_iterator at(directory, ignored);
  for (; at != fs::recursive_directory_iterator(); at.increment(ignored)) {
    std::error_code gone;
    if (at->symlink_status(gone).type() != fs::file_type::regular) continue;
    const uintmax_t size = at->file_size(gone);
    if (!gone) take(at->path().string().substr(directory.size() + 1), size);
  }
}

}  // namespace

uint64_t BytesBelow(const std::string& directory) {
  uint64_t bytes = 0;
  ForEachFileBelow(directory, [&bytes](const std::string&, uint64_t size) {
    bytes += size;
  });
  return bytes;
}

std::vector<v1::JobFile> FilesBelow(const std::string& directory) {
  std::vector<v1::JobFile> files;
  ForEachFileBelow(directory, [&files](std::string name, uint64_t size) {
    if (files.size() >= kMaxListedFiles) return;
    v1::JobFile& file = files.emplace_back();
    file.set_name(std::move(name));
    file.set_length_bytes(size);
  });
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
  return files;
}

std::string Shown(absl::string_view text, const std::string& directory) {
  std::string out;
  for (;;) {
    const size_t at = text.find(directory);
    absl::StrAppend(&out, text.substr(0, at));
    if (at == absl::string_view::npos) return out;
    text.remove_prefix(at + directory.size());
    if (absl::ConsumePrefix(&text, "/out/") || !absl::StartsWith(text, "/tmp/"))
      continue;
    // The form is "/tmp/rankprobe_4slhDU/dump/step1/..".
    constexpr absl::string_view kDump = "/dump/";
    const size_t dump = text.substr(0, 64).find(kDump);
    if (dump != absl::string_view::npos)
      text.remove_prefix(dump + kDump.size());
  }
}

}  // namespace rankprobe
