// SPDX-License-Identifier: Apache-2.0
#include "common/io/confined_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/io/descriptor_walk.h"
#include "common/io/posix_files.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kLinkInTheWay = "rankprobe/link-in-the-way";

struct Root {
  std::string path;  // without a slash at its end
  // Null: opened with each call.
  std::shared_ptr<const Descriptor> directory;
};

// A path, as a root and the part below it; "" is the root itself.
struct Place {
  const Root* root;
  std::shared_ptr<const Descriptor> directory;
  std::string below;
};

Descriptor OpenRoot(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

// An entry of an open directory.
struct Entry {
  Place place;
  Descriptor parent;
  std::string name;
};

class ConfinedFileSystem : public FileSystem {
 public:
  ConfinedFileSystem(std::vector<Root> roots, bool openat2)
      : roots_(std::move(roots)), openat2_(openat2) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) override {
    int flags = O_WRONLY | O_CREAT | O_NONBLOCK;
    if (mode == OpenMode::kCreateNew) flags |= O_EXCL;
    if (mode == OpenMode::kAppend) flags |= O_APPEND;
    RP_ASSIGN_OR_RETURN(Descriptor file, Open(path, flags, 0640));
    if (mode != OpenMode::kCreateNew) {
      RP_ASSIGN_OR_RETURN(const off_t size, SizeToWrite(file, path));
      // Truncated after the checks and not with O_TRUNC, which would truncate
      // before them.
      if (mode == OpenMode::kTruncate && size > 0 &&
          ::ftruncate(file.get(), 0) != 0)
        return posix::FromErrno(errno, "truncate", path);
    }
    return posix::Writable(file.Release(), path);
  }

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) override {
    RP_ASSIGN_OR_RETURN(Descriptor file, Open(path, O_RDONLY | O_NONBLOCK));
    return posix::Readable(file.Release(), path);
  }

  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    RP_ASSIGN_OR_RETURN(const Place place, Locate(path));
    const Descriptor file = OpenBelow(place, O_PATH);
    struct stat st;
    if (!file.ok() || ::fstat(file.get(), &st) != 0)
      return Error(errno, "stat", path, place);
    if (S_ISLNK(st.st_mode)) return Error(ELOOP, "stat", path, place);
    if (!S_ISREG(st.st_mode)) return posix::NotRegular(path);
    return static_cast<uint64_t>(st.st_size);
  }

  bool Exists(const std::string& path) override {
    const absl::StatusOr<Place> place = Locate(path);
    if (!place.ok()) return true;
    if (OpenBelow(*place, O_PATH).ok()) return true;
    return errno != ENOENT && errno != ENOTDIR;
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override {
    RP_ASSIGN_OR_RETURN(Descriptor open,
                        Open(directory, O_RDONLY | O_DIRECTORY));
    DIR* const dir = ::fdopendir(open.get());
    if (dir == nullptr) return posix::FromErrno(errno, "list", directory);
    // fdopendir has taken the descriptor.
    open.Release();
    std::vector<std::string> names;
    // readdir returns null both at the end and on an error.
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return posix::FromErrno(error, "list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status CreateDirectories(const std::string& directory) override {
    RP_ASSIGN_OR_RETURN(const Place place, Locate(directory));
    return Create(directory, place);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    RP_ASSIGN_OR_RETURN(const Entry source, Find(from));
    RP_ASSIGN_OR_RETURN(const Entry target, Find(to));
    if (::renameat(source.parent.get(), source.name.c_str(),
                   target.parent.get(), target.name.c_str()) == 0)
      return absl::OkStatus();
    return posix::FromErrno(errno, absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Link(const std::string& from, const std::string& to) override {
    RP_ASSIGN_OR_RETURN(const Entry target, Find(to));
    Entry source{{}, Descriptor(), from};
    // The caller vouches for a source that is outside of the roots.
    if (RootOf(from) != nullptr) {
      RP_ASSIGN_OR_RETURN(source, Find(from));
    }
    // Without AT_SYMLINK_FOLLOW, a link at the source would itself get a second
    // name.
    if (::linkat(source.parent.ok() ? source.parent.get() : AT_FDCWD,
                 source.name.c_str(), target.parent.get(), target.name.c_str(),
                 0) == 0)
      return absl::OkStatus();
    return posix::FromErrno(errno, absl::StrCat("link ", from, " to"), to);
  }

  absl::Status SyncFile(const std::string& path) override {
    RP_ASSIGN_OR_RETURN(const Descriptor file,
                        Open(path, O_RDONLY | O_NONBLOCK));
    if (::fdatasync(file.get()) == 0) return absl::OkStatus();
    // After a failed fdatasync the state of the data is unknown, so freeing
    // space does not help: not RESOURCE_EXHAUSTED.
    const absl::Status status = posix::FromErrno(errno, "fdatasync", path);
    return absl::IsResourceExhausted(status)
               ? absl::DataLossError(status.message())
               : status;
  }

  absl::Status Delete(const std::string& path) override {
    RP_ASSIGN_OR_RETURN(const Entry entry, Find(path));
    if (::unlinkat(entry.parent.get(), entry.name.c_str(), 0) == 0)
      return absl::OkStatus();
    return posix::FromErrno(errno, "delete", path);
  }

  absl::Status DeleteTree(const std::string& directory) override {
    const absl::StatusOr<Entry> entry = Find(directory);
    if (absl::IsNotFound(entry.status())) return absl::OkStatus();
    RP_RETURN_IF_ERROR(entry.status());
    const int error = RemoveTree(entry->parent.get(), entry->name);
    if (error == 0) return absl::OkStatus();
    if (error == ELOOP) {
      return absl::FailedPreconditionError(absl::StrCat(
          "delete ", directory,
          ": it is nested deeper than any directory of rankprobe; remove it"));
    }
    return posix::FromErrno(error, "delete", directory);
  }

  absl::Status Truncate(const std::string& path, uint64_t size) override {
    RP_ASSIGN_OR_RETURN(const Descriptor file,
                        Open(path, O_WRONLY | O_NONBLOCK));
    RP_RETURN_IF_ERROR(SizeToWrite(file, path).status());
    if (::ftruncate(file.get(), static_cast<off_t>(size)) == 0)
      return absl::OkStatus();
    return posix::FromErrno(errno, "truncate", path);
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    RP_ASSIGN_OR_RETURN(const Descriptor open,
                        Open(directory, O_RDONLY | O_DIRECTORY));
    if (::fsync(open.get()) == 0) return absl::OkStatus();
    return posix::FromErrno(errno, "fsync", directory);
  }

  absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) override {
    for (;;) {
      RP_ASSIGN_OR_RETURN(Descriptor file,
                          Open(path, O_RDWR | O_CREAT | O_NONBLOCK, 0640));
      RP_RETURN_IF_ERROR(SizeToWrite(file, path).status());
      absl::StatusOr<std::unique_ptr<FileLock>> lock =
          posix::LockFile(file.Release(), path);
      // The file was deleted between open and lock: try the one that has its
      // name.
      if (!absl::IsAborted(lock.status())) return lock;
    }
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    RP_ASSIGN_OR_RETURN(const Descriptor open, Open(path, O_PATH));
    struct statvfs st;
    if (::fstatvfs(open.get(), &st) != 0)
      return posix::FromErrno(errno, "statvfs", path);
    return static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
  }

  absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) override {
    RP_ASSIGN_OR_RETURN(const Descriptor open, Open(path, O_PATH));
    struct statvfs st;
    if (::fstatvfs(open.get(), &st) != 0)
      return posix::FromErrno(errno, "statvfs", path);
    return posix::CapacityOf(st);
  }

 private:
  // Returns null if the path is below no root.
  const Root* RootOf(const std::string& path) const {
    for (const Root& root : roots_) {
      if (path == root.path || absl::StartsWith(path, root.path + "/"))
        return &root;
    }
    return nullptr;
  }

  absl::StatusOr<Place> Locate(const std::string& path) const {
    Place place{RootOf(path), nullptr, ""};
    if (place.root == nullptr) {
      return absl::PermissionDeniedError(absl::StrCat(
          path, " does not lie below a directory that may be written to"));
    }
    // Reachable from the root's descriptor, but other programs could not open
    // it by path.
    if (path.size() >= PATH_MAX)
      return absl::InvalidArgumentError(absl::StrCat(path, " is too long"));
    for (const absl::string_view part :
         absl::StrSplit(absl::string_view(path).substr(place.root->path.size()),
                        '/', absl::SkipEmpty())) {
      if (part == ".") continue;
      if (part == ".." || absl::StrContains(part, '\0')) {
        return absl::PermissionDeniedError(
            absl::StrCat(path, " has a part that is \"..\" or no name"));
      }
      absl::StrAppend(&place.below, place.below.empty() ? "" : "/", part);
    }
    place.directory = place.root->directory;
    if (place.directory == nullptr) {
      Descriptor now = OpenRoot(place.root->path);
      if (!now.ok()) {
        // Not NOT_FOUND, because the contents are unknown.
        return absl::UnavailableError(
            posix::FromErrno(errno, "open", place.root->path).message());
      }
      place.directory = std::make_shared<const Descriptor>(std::move(now));
    }
    return place;
  }

  Descriptor OpenBelow(const Place& place, int flags, mode_t mode = 0) const {
    return rankprobe::OpenBelow(openat2_, place.directory->get(), place.below,
                                flags, mode);
  }

  static absl::Status Error(int error, absl::string_view what,
                            const std::string& path, const Place& place) {
    if (error != ELOOP && error != EXDEV)
      return posix::FromErrno(error, what, path);
    const std::string link = FirstLink(place.directory->get(), place.below);
    absl::Status status = absl::PermissionDeniedError(absl::StrCat(
        what, " ", path, ": ",
        link.empty() ? "a part of it"
                     : absl::StrCat(place.root->path, "/", link),
        " is a symbolic link, and none is followed below ", place.root->path));
    status.SetPayload(kLinkInTheWay, absl::Cord());
    return status;
  }

  absl::StatusOr<Descriptor> Open(const std::string& path, int flags,
                                  mode_t mode = 0) const {
    RP_ASSIGN_OR_RETURN(const Place place, Locate(path));
    Descriptor file = OpenBelow(place, flags, mode);
    if (!file.ok()) return Error(errno, "open", path, place);
    return file;
  }

  absl::StatusOr<Entry> Find(const std::string& path) const {
    RP_ASSIGN_OR_RETURN(Place place, Locate(path));
    if (place.below.empty()) {
      return absl::PermissionDeniedError(
          absl::StrCat(path, " itself is neither moved nor deleted"));
    }
    const size_t slash = place.below.rfind('/');
    Place parent{
        place.root, place.directory,
        slash == std::string::npos ? "" : place.below.substr(0, slash)};
    Descriptor open = OpenBelow(parent, O_PATH | O_DIRECTORY);
    if (!open.ok()) return Error(errno, "open the directory of", path, parent);
    std::string name = place.below.substr(slash + 1);
    return Entry{std::move(place), std::move(open), std::move(name)};
  }

  absl::Status Create(const std::string& directory, const Place& place) const {
    if (place.below.empty()) return absl::OkStatus();
    const size_t slash = place.below.rfind('/');
    const Place above{
        place.root, place.directory,
        slash == std::string::npos ? "" : place.below.substr(0, slash)};
    Descriptor parent = OpenBelow(above, O_PATH | O_DIRECTORY);
    // Creates the parent only on demand, because it usually exists.
    if (!parent.ok() && errno == ENOENT) {
      RP_RETURN_IF_ERROR(Create(directory, above));
      parent = OpenBelow(above, O_PATH | O_DIRECTORY);
    }
    if (!parent.ok()) return Error(errno, "create", directory, above);
    const std::string name = place.below.substr(slash + 1);
    if (::mkdirat(parent.get(), name.c_str(), 0750) == 0)
      return absl::OkStatus();
    if (errno != EEXIST) return Error(errno, "create", directory, place);
    struct stat st;
    // The existing entry may be a link, which must not be followed.
    if (::fstatat(parent.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0)
      return Error(errno, "create", directory, place);
    if (S_ISLNK(st.st_mode)) return Error(ELOOP, "create", directory, place);
    if (S_ISDIR(st.st_mode)) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat(directory, " is not a directory"));
  }

  // Returns the size of an existing file that is about to be changed. Rejects a
  // file with a second name, which may be anywhere.
  static absl::StatusOr<off_t> SizeToWrite(const Descriptor& file,
                                           const std::string& path) {
    struct stat st;
    if (::fstat(file.get(), &st) != 0)
      return posix::FromErrno(errno, "stat", path);
    if (!S_ISREG(st.st_mode)) return posix::NotRegular(path);
    if (st.st_nlink > 1) {
      return absl::PermissionDeniedError(absl::StrCat(
          path,
          " has another name somewhere (a hard link): it is not written "
          "over"));
    }
    return st.st_size;
  }

  const std::vector<Root> roots_;
  const bool openat2_;
};

}  // namespace

bool IsLinkInTheWay(const absl::Status& status) {
  return status.GetPayload(kLinkInTheWay).has_value();
}

absl::StatusOr<std::unique_ptr<FileSystem>> NewConfinedFileSystem(
    const std::vector<std::string>& roots, PathWalk walk, RootLookup lookup) {
  std::vector<Root> open;
  bool openat2 = walk == PathWalk::kBest;
  for (std::string path : roots) {
    Descriptor directory = OpenRoot(path);
    if (!directory.ok()) return posix::FromErrno(errno, "open", path);
    openat2 = openat2 && HasOpenat2(directory.get());
    while (absl::EndsWith(path, "/")) path.pop_back();
    open.push_back({std::move(path), lookup == RootLookup::kEachCall
                                         ? nullptr
                                         : std::make_shared<const Descriptor>(
                                               std::move(directory))});
  }
  return std::make_unique<ConfinedFileSystem>(std::move(open), openat2);
}

}  // namespace rankprobe
