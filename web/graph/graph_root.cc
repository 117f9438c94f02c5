// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/random_bytes.h"

namespace rankprobe {
namespace {

constexpr int kMostDepth = 6;
constexpr size_t kMostNames = 200'000;
constexpr size_t kMostFound = 10'000;

// Whether a name is the word and a number: "rank3", "rank", "proc17" are
// processes of a dump, "step5" is a step.
bool IsNumbered(absl::string_view name, absl::string_view word) {
  return absl::ConsumePrefix(&name, word) &&
         absl::c_all_of(name, absl::ascii_isdigit);
}
bool IsProcess(absl::string_view name) {
  return IsNumbered(name, "rank") || IsNumbered(name, "proc");
}

std::pair<absl::string_view, absl::string_view> SplitLast(
    absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

std::string Join(absl::string_view directory, absl::string_view name) {
  return directory.empty() ? std::string(name)
                           : absl::StrCat(directory, "/", name);
}

absl::Status ErrnoStatus(absl::string_view path) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(errno));
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case ELOOP:
    case EXDEV:
      return absl::PermissionDeniedError(
          absl::StrCat(path, ": a symbolic link is in the way"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// The top directory of a dump, and the step and the process that were found in
// it.
struct DumpPart {
  std::string top;
  std::string step;
  std::string process;
};

DumpPart PartOf(absl::string_view directory) {
  const auto [above, name] = SplitLast(directory);
  if (!IsProcess(name)) return {std::string(directory), "", ""};
  const auto [top, step] = SplitLast(above);
  if (!above.empty() && IsNumbered(step, "step")) {
    return {std::string(top), std::string(step), std::string(name)};
  }
  return {std::string(above), "", std::string(name)};
}

}  // namespace

bool IsPathBelow(absl::string_view path) {
  if (path.empty()) return true;
  if (path.size() > 4096 || path.find('\0') != absl::string_view::npos) {
    return false;
  }
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == ".." || part.size() > 255) {
      return false;
    }
  }
  return true;
}

GraphRoot::GraphRoot(std::string directory, Descriptor descriptor, bool openat2)
    : directory_(std::move(directory)),
      descriptor_(std::move(descriptor)),
      openat2_(openat2) {}

absl::StatusOr<std::unique_ptr<GraphRoot>> GraphRoot::Open(
    const std::string& directory) {
  Descriptor root(
      ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) {
    if (errno == ENOTDIR) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory, ": no directory"));
    }
    return ErrnoStatus(directory);
  }
  const bool openat2 = HasOpenat2(root.get());
  return std::unique_ptr<GraphRoot>(
      new GraphRoot(directory, std::move(root), openat2));
}

Found GraphRoot::List() const {
  Found found;
  std::map<std::string, std::pair<std::set<std::string>, std::set<std::string>>>
      dumps;
  std::deque<std::pair<std::string, int>> waiting = {{"", 0}};
  size_t names = 0;
  while (!waiting.empty()) {
    const auto [directory, depth] = std::move(waiting.front());
    waiting.pop_front();
    Descriptor fd = OpenBelow(openat2_, descriptor_.get(), directory,
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (!fd.ok()) continue;  // deleted meanwhile, or not readable
    const int raw = fd.get();
    DIR* const stream = ::fdopendir(fd.Release());
    if (stream == nullptr) continue;
    while (const dirent* const entry = ::readdir(stream)) {
      const absl::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (++names > kMostNames || found.databases.size() >= kMostFound ||
          dumps.size() >= kMostFound) {
        found.truncated = true;
        break;
      }
      struct stat info;
      if (::fstatat(raw, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        continue;
      }
      if (S_ISDIR(info.st_mode)) {
        // Directories of tensors have very many files, and none of the ones
        // searched for.
        if (name == "dump_tensor_data" || absl::StartsWith(name, ".")) continue;
        if (depth < kMostDepth) {
          waiting.emplace_back(Join(directory, name), depth + 1);
        } else {
          found.truncated = true;
        }
      } else if (S_ISREG(info.st_mode)) {
        if (absl::EndsWith(name, ".vis.db")) {
          found.databases.push_back({Join(directory, name),
                                     static_cast<uint64_t>(info.st_size),
                                     info.st_mtim.tv_sec});
        } else if (name == "dump.json") {
          const DumpPart part = PartOf(directory);
          auto& [steps, processes] = dumps[part.top];
          steps.insert(part.step);
          processes.insert(part.process);
        }
      }
    }
    ::closedir(stream);
    if (names > kMostNames) break;
  }
  for (const auto& [path, parts] : dumps) {
    found.dumps.push_back({path, static_cast<int64_t>(parts.first.size()),
                           static_cast<int64_t>(parts.second.size())});
  }
  absl::c_sort(found.databases, [](const FoundFile& a, const FoundFile& b) {
    return std::make_pair(-a.modified_unix_s, a.path) <
           std::make_pair(-b.modified_unix_s, b.path);
  });
  return found;
}

absl::StatusOr<Descriptor> GraphRoot::OpenFile(absl::string_view path) const {
  if (path.empty() || !IsPathBelow(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(path.substr(0, 200)),
                     "\" is not a file below ", directory_));
  }
  // O_NONBLOCK, because opening a FIFO would wait for a writer.
  Descriptor file =
      OpenBelow(openat2_, descriptor_.get(), std::string(path),
                O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (!file.ok()) return ErrnoStatus(path);
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no file"));
  }
  return file;
}

absl::StatusOr<std::string> GraphRoot::ReadText(absl::string_view path,
                                                size_t max_bytes) const {
  absl::StatusOr<Descriptor> file = OpenFile(path);
  if (!file.ok()) return file.status();
  std::string text(max_bytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::pread(file->get(), text.data() + size,
                                  text.size() - size, static_cast<off_t>(size));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(path);
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  if (size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": larger than ", max_bytes >> 10, " KiB"));
  }
  text.resize(size);
  return text;
}

absl::Status GraphRoot::WriteText(absl::string_view path,
                                  absl::string_view text) const {
  if (path.empty() || !IsPathBelow(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(path.substr(0, 200)),
                     "\" is not a file below ", directory_));
  }
  const auto [above, name] = SplitLast(path);
  const Descriptor directory =
      OpenBelow(openat2_, descriptor_.get(), std::string(above),
                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (!directory.ok()) return ErrnoStatus(path);
  const std::string target(name);
  struct stat info;
  if (::fstatat(directory.get(), target.c_str(), &info, AT_SYMLINK_NOFOLLOW) ==
          0 &&
      !S_ISREG(info.st_mode)) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": something exists there that is not a file"));
  }
  const std::string temporary =
      absl::StrCat(".", absl::BytesToHexString(RandomBytes(8)), ".part");
  Descriptor file(::openat(directory.get(), temporary.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                           0640));
  if (!file.ok()) return ErrnoStatus(path);
  absl::Status status;
  while (!text.empty() && status.ok()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count > 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      status = ErrnoStatus(path);
    }
  }
  // Synced before the rename: after a crash, the name refers to the old file or
  // to the complete new one.
  if (status.ok() && (::fsync(file.get()) != 0 ||
                      ::renameat(directory.get(), temporary.c_str(),
                                 directory.get(), target.c_str()) != 0)) {
    status = ErrnoStatus(path);
  }
  if (!status.ok()) (void)::unlinkat(directory.get(), temporary.c_str(), 0);
  return status;
}

absl::StatusOr<std::string> GraphRoot::FindDirectory(
    absl::string_view path) const {
  absl::StatusOr<std::string> name = DirectoryOf(path);
  if (!name.ok()) return name.status();
  const Descriptor directory =
      OpenBelow(openat2_, descriptor_.get(), std::string(path),
                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (!directory.ok()) return ErrnoStatus(path);
  return name;
}

absl::StatusOr<std::string> GraphRoot::DirectoryOf(
    absl::string_view path) const {
  if (!IsPathBelow(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(path.substr(0, 200)),
                     "\" is not a directory below ", directory_));
  }
  return Join(directory_, path);
}

}  // namespace rankprobe
