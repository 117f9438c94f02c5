// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/directory_object_store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/io/confined_file_system.h"

namespace rankprobe {
namespace {

constexpr uint64_t kCopyBytes = 1 << 20;
constexpr size_t kMaxListed = 1000;

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string WithoutSlash(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return directory;
}

}  // namespace

// One listing: the request, and the result.
struct DirectoryObjectStore::Walk {
  absl::string_view prefix;
  absl::string_view start_after;
  size_t most;
  ObjectList* found;

  bool full() const { return found->more; }
  // Returns whether a key that begins with `beginning` may be requested.
  bool MayHold(absl::string_view beginning) const {
    return absl::StartsWith(beginning, prefix) ||
           absl::StartsWith(prefix, beginning);
  }
};

DirectoryObjectStore::DirectoryObjectStore(FileSystem* file_system,
                                           std::string directory)
    : file_system_(file_system),
      directory_(WithoutSlash(std::move(directory))) {}

std::string DirectoryObjectStore::name() const {
  return absl::StrCat("directory ", directory_);
}

std::string DirectoryObjectStore::PathOf(absl::string_view key) const {
  return absl::StrCat(directory_, "/", key);
}

absl::Status DirectoryObjectStore::MakeDirectories(
    const std::string& directory) {
  {
    absl::MutexLock lock(&mutex_);
    if (known_.contains(directory)) return absl::OkStatus();
  }
  const std::string parent = ParentOf(directory);
  // Directories above the archive are not ours; they may not even be readable.
  const bool ours = directory.size() > directory_.size();
  if (ours) RP_RETURN_IF_ERROR(MakeDirectories(parent));
  const bool made = !file_system_->Exists(directory);
  RP_RETURN_IF_ERROR(file_system_->CreateDirectories(directory));
  // Another process may have created it and died before the sync.
  if (ours || made) RP_RETURN_IF_ERROR(file_system_->SyncDirectory(parent));
  absl::MutexLock lock(&mutex_);
  known_.insert(directory);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> DirectoryObjectStore::BeginUpload(
    std::string* path) {
  const std::string uploads = PathOf(".uploads");
  RP_RETURN_IF_ERROR(MakeDirectories(uploads));
  *path = absl::StrCat(uploads, "/", absl::BytesToHexString(RandomBytes(16)));
  return file_system_->OpenForWrite(*path, FileSystem::OpenMode::kCreateNew);
}

absl::Status DirectoryObjectStore::Publish(const std::string& upload,
                                           const std::string& key,
                                           PutMode mode) {
  const std::string path = PathOf(key);
  const std::string parent = ParentOf(path);
  RP_RETURN_IF_ERROR(MakeDirectories(parent));
  if (mode == PutMode::kReplace) {
    RP_RETURN_IF_ERROR(file_system_->Rename(upload, path));
    return file_system_->SyncDirectory(parent);
  }
  const absl::Status linked = file_system_->Link(upload, path);
  if (!linked.ok() && !absl::IsAlreadyExists(linked)) return linked;
  // The winner may have died before its sync, and a caller that gets
  // ALREADY_EXISTS may rely on the object.
  RP_RETURN_IF_ERROR(file_system_->SyncDirectory(parent));
  if (!linked.ok()) return absl::AlreadyExistsError(key);
  file_system_->Delete(upload).IgnoreError();
  return absl::OkStatus();
}

absl::Status DirectoryObjectStore::Put(const std::string& key,
                                       absl::string_view bytes, PutMode mode) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  std::string upload;
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                      BeginUpload(&upload));
  absl::Status status = file->Append(bytes);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  if (status.ok()) status = Publish(upload, key, mode);
  if (!status.ok()) file_system_->Delete(upload).IgnoreError();
  return status;
}

absl::Status DirectoryObjectStore::PutFile(const std::string& key,
                                           FileSystem* file_system,
                                           const std::string& path) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> from,
                      file_system->OpenForRead(path));
  std::string upload;
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                      BeginUpload(&upload));
  absl::Status status;
  std::string buffer;
  for (uint64_t at = 0; at < size && status.ok(); at += buffer.size()) {
    buffer.resize(std::min(kCopyBytes, size - at));
    status = from->Read(at, absl::MakeSpan(buffer));
    if (status.ok()) status = file->Append(buffer);
  }
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  if (status.ok()) status = Publish(upload, key, PutMode::kReplace);
  if (!status.ok()) file_system_->Delete(upload).IgnoreError();
  return status;
}

absl::StatusOr<std::string> DirectoryObjectStore::Get(const std::string& key,
                                                      uint64_t offset,
                                                      uint64_t bytes) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(PathOf(key)));
  // Checked before memory is allocated.
  if (offset > size || bytes > size - offset) {
    return absl::OutOfRangeError(absl::StrCat(key, ": ", bytes, " bytes at ",
                                              offset, " go beyond its end"));
  }
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system_->OpenForRead(PathOf(key)));
  std::string data(bytes, '\0');
  RP_RETURN_IF_ERROR(file->Read(offset, absl::MakeSpan(data)));
  return data;
}

absl::StatusOr<ObjectTail> DirectoryObjectStore::GetTail(const std::string& key,
                                                         uint64_t bytes) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  ObjectTail tail;
  RP_ASSIGN_OR_RETURN(tail.object_bytes, file_system_->FileSize(PathOf(key)));
  const uint64_t wanted = std::min(bytes, tail.object_bytes);
  RP_ASSIGN_OR_RETURN(tail.bytes, Get(key, tail.object_bytes - wanted, wanted));
  return tail;
}

absl::Status DirectoryObjectStore::Emit(const std::string& key_prefix,
                                        const std::string& name,
                                        std::optional<uint64_t> size,
                                        Walk* walk) {
  const std::string key = key_prefix + name;
  if (!size.has_value())
    return ListBelow(PathOf(key), absl::StrCat(key, "/"), walk);
  if (!absl::StartsWith(key, walk->prefix) || key <= walk->start_after)
    return absl::OkStatus();
  if (walk->found->objects.size() == walk->most) {
    walk->found->more = true;
    return absl::OkStatus();
  }
  walk->found->objects.push_back({key, *size});
  return absl::OkStatus();
}

absl::Status DirectoryObjectStore::ListBelow(const std::string& directory,
                                             const std::string& key_prefix,
                                             Walk* walk) {
  const absl::StatusOr<std::vector<std::string>> names =
      file_system_->List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RP_RETURN_IF_ERROR(names.status());
  // Keys in a directory sort at "name/", which may be after "name-", so entries
  // wait here until their place among the keys is reached.
  std::map<std::string, std::pair<std::string, std::optional<uint64_t>>>
      waiting;
  const auto emit_before = [&](const std::string* next) {
    absl::Status status;
    while (status.ok() && !walk->full() && !waiting.empty() &&
           (next == nullptr || waiting.begin()->first < *next)) {
      const auto [name, size] = waiting.begin()->second;
      waiting.erase(waiting.begin());
      status = Emit(key_prefix, name, size, walk);
    }
    return status;
  };
  for (const std::string& name : *names) {
    const std::string key = key_prefix + name;
    // '0' is the byte after '/'.
    if (name[0] == '.' || !walk->MayHold(key) ||
        absl::StrCat(key, "0") <= walk->start_after)
      continue;
    RP_RETURN_IF_ERROR(emit_before(&name));
    if (walk->full()) return absl::OkStatus();
    const absl::StatusOr<uint64_t> size = file_system_->FileSize(PathOf(key));
    if (size.ok()) {
      waiting[name] = {name, *size};
      continue;
    }
    const absl::Status listed = IsLinkInTheWay(size.status())
                                    ? size.status()
                                    : file_system_->List(PathOf(key)).status();
    if (listed.ok()) {
      waiting[absl::StrCat(name, "/")] = {name, std::nullopt};
    } else if (IsLinkInTheWay(listed) ||
               (absl::IsInvalidArgument(size.status()) &&
                absl::IsNotFound(listed))) {
      // A link or another special file. It is not ours: it is listed without a
      // size, so that it does not hide its neighbours.
      waiting[name] = {name, 0};
    } else if (!absl::IsNotFound(size.status())) {  // else deleted since
      return size.status();
    }
  }
  return emit_before(nullptr);
}

absl::StatusOr<ObjectList> DirectoryObjectStore::List(
    const std::string& prefix, const std::string& start_after, size_t most) {
  RP_RETURN_IF_ERROR(CheckObjectPrefix(prefix));
  ObjectList found;
  Walk walk{prefix, start_after, std::clamp<size_t>(most, 1, kMaxListed),
            &found};
  // Begins at the directory of the prefix.
  const size_t slash = prefix.rfind('/');
  const std::string parent =
      slash == std::string::npos ? "" : prefix.substr(0, slash + 1);
  RP_RETURN_IF_ERROR(ListBelow(
      parent.empty() ? directory_
                     : PathOf(absl::string_view(parent).substr(0, slash)),
      parent, &walk));
  return found;
}

absl::Status DirectoryObjectStore::Delete(const std::string& key) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  const absl::Status status = file_system_->Delete(PathOf(key));
  if (absl::IsNotFound(status)) return absl::OkStatus();
  RP_RETURN_IF_ERROR(status);
  return file_system_->SyncDirectory(ParentOf(PathOf(key)));
}

}  // namespace rankprobe
