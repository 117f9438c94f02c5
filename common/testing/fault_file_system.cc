// SPDX-License-Identifier: Apache-2.0
#include "common/testing/fault_file_system.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::testing {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status NotThere(const std::string& op, const std::string& path) {
  return absl::NotFoundError(
      absl::StrCat(op, " ", path, ": No such file or directory"));
}

}  // namespace

class FaultFileSystem::File : public WritableFile {
 public:
  File(FaultFileSystem* fs, std::string path, std::shared_ptr<Inode> inode,
       uint64_t life)
      : fs_(fs),
        path_(std::move(path)),
        inode_(std::move(inode)),
        life_(life) {}
  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    return fs_->AppendTo(inode_, life_, path_, pieces);
  }
  absl::Status Sync() override { return fs_->SyncInode(inode_, life_, path_); }
  void ForgetSynced(uint64_t offset, uint64_t bytes) override {
    absl::MutexLock lock(&fs_->mutex_);
    fs_->forgotten_.push_back({path_, offset, bytes});
  }
  absl::Status Close() override {
    absl::MutexLock lock(&fs_->mutex_);
    return fs_->Check("Close", path_);
  }

 private:
  FaultFileSystem* const fs_;
  const std::string path_;
  const std::shared_ptr<Inode> inode_;
  const uint64_t life_;
};

class FaultFileSystem::Reader : public RandomAccessFile {
 public:
  Reader(FaultFileSystem* fs, std::string path, std::shared_ptr<Inode> inode)
      : fs_(fs), path_(std::move(path)), inode_(std::move(inode)) {}
  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    fs_->Delay("Read");
    absl::MutexLock lock(&fs_->mutex_);
    RP_RETURN_IF_ERROR(fs_->Check("Read", path_, /*read=*/true));
    if (offset > inode_->data.size() ||
        out.size() > inode_->data.size() - offset)
      return absl::OutOfRangeError(
          absl::StrCat("read ", path_, " at ", offset));
    std::memcpy(out.data(), inode_->data.data() + offset, out.size());
    return absl::OkStatus();
  }

 private:
  FaultFileSystem* const fs_;
  const std::string path_;
  const std::shared_ptr<Inode> inode_;
};

class FaultFileSystem::Held : public FileLock {
 public:
  Held(FaultFileSystem* fs, std::string path)
      : fs_(fs), path_(std::move(path)) {}
  ~Held() override {
    absl::MutexLock lock(&fs_->mutex_);
    fs_->locks_.erase(path_);
  }

 private:
  FaultFileSystem* const fs_;
  const std::string path_;
};

uint64_t FaultFileSystem::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}
void FaultFileSystem::CountReads(bool count_reads) {
  absl::MutexLock lock(&mutex_);
  count_reads_ = count_reads;
}
void FaultFileSystem::FailCall(uint64_t number, FaultKind kind) {
  absl::MutexLock lock(&mutex_);
  fault_at_ = number;
  fault_kind_ = kind;
  faulty_call_.clear();
}
std::string FaultFileSystem::faulty_call() const {
  absl::MutexLock lock(&mutex_);
  return faulty_call_;
}
void FaultFileSystem::FailWhile(
    std::function<FaultKind(const std::string&, const std::string&)> pick) {
  absl::MutexLock lock(&mutex_);
  pick_ = std::move(pick);
}
void FaultFileSystem::SetCapacity(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  capacity_ = bytes;
}
uint64_t FaultFileSystem::used_bytes() const {
  absl::MutexLock lock(&mutex_);
  return UsedLocked();
}
uint64_t FaultFileSystem::UsedLocked() const {
  uint64_t bytes = 0;
  for (const auto& [path, inode] : files_) bytes += inode->data.size();
  return bytes;
}

std::vector<FaultFileSystem::Forgotten> FaultFileSystem::forgotten() const {
  absl::MutexLock lock(&mutex_);
  return forgotten_;
}

void FaultFileSystem::SetDelay(std::function<void(const std::string&)> delay) {
  absl::MutexLock lock(&mutex_);
  delay_ = std::move(delay);
}
void FaultFileSystem::Delay(const std::string& op) {
  std::function<void(const std::string&)> delay;
  {
    absl::MutexLock lock(&mutex_);
    delay = delay_;
  }
  if (delay) delay(op);
}

FaultKind FaultFileSystem::Begin(const std::string& op, const std::string& path,
                                 bool read) {
  if (down_) return FaultKind::kCrash;
  FaultKind kind = FaultKind::kNone;
  if (!read || count_reads_) {
    ++calls_;
    if (calls_ == fault_at_) kind = fault_kind_;
  }
  if (kind == FaultKind::kNone && pick_) kind = pick_(op, path);
  if (kind != FaultKind::kNone) faulty_call_ = absl::StrCat(op, " ", path);
  if (kind == FaultKind::kCrash) down_ = true;
  return kind;
}

absl::Status FaultFileSystem::ErrorOf(FaultKind kind, const std::string& op,
                                      const std::string& path) {
  switch (kind) {
    case FaultKind::kNone:
      return absl::OkStatus();
    case FaultKind::kNoSpace:
    case FaultKind::kShortWrite:
      return absl::ResourceExhaustedError(
          absl::StrCat(op, " ", path, ": No space left on device"));
    default:
      return absl::DataLossError(
          absl::StrCat(op, " ", path, ": Input/output error"));
  }
}

absl::Status FaultFileSystem::Check(const std::string& op,
                                    const std::string& path, bool read) {
  return ErrorOf(Begin(op, path, read), op, path);
}

void FaultFileSystem::CrashAndRestart(Unsynced unsynced) {
  absl::MutexLock lock(&mutex_);
  for (auto& [path, inode] : durable_files_) {
    size_t keep = inode->durable.size();
    // Some of the pages had been written back.
    if (unsynced == Unsynced::kHalfKept && inode->data.size() > keep &&
        inode->data.compare(0, keep, inode->durable) == 0)
      keep += (inode->data.size() - keep) / 2;
    inode->data = keep > inode->durable.size() ? inode->data.substr(0, keep)
                                               : inode->durable;
    inode->durable = inode->data;
  }
  files_ = durable_files_;
  ++life_;
  down_ = false;
  fault_at_ = 0;
  fault_kind_ = FaultKind::kNone;
}

absl::Status FaultFileSystem::AppendTo(
    const std::shared_ptr<Inode>& inode, uint64_t life, const std::string& path,
    absl::Span<const absl::string_view> pieces) {
  Delay("Append");
  absl::MutexLock lock(&mutex_);
  FaultKind kind = Begin("Append", path, false);
  if (life != life_) kind = FaultKind::kCrash;
  uint64_t total = 0;
  for (const absl::string_view piece : pieces) total += piece.size();
  uint64_t room = total;
  if (kind == FaultKind::kNone && capacity_ != UINT64_MAX) {
    const uint64_t used = UsedLocked();
    room = std::min(room, capacity_ - std::min(capacity_, used));
    // A full disk accepts what fits.
    if (room < total) kind = FaultKind::kNoSpace;
  } else if (kind == FaultKind::kShortWrite) {
    room = total / 2;
  } else if (kind != FaultKind::kNone) {
    room = 0;
  }
  for (const absl::string_view piece : pieces) {
    const size_t take = std::min<uint64_t>(piece.size(), room);
    inode->data.append(piece.data(), take);
    room -= take;
  }
  return ErrorOf(kind, "Append", path);
}

absl::Status FaultFileSystem::SyncInode(const std::shared_ptr<Inode>& inode,
                                        uint64_t life,
                                        const std::string& path) {
  Delay("Sync");
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("fdatasync", path));
  if (life != life_) return ErrorOf(FaultKind::kCrash, "fdatasync", path);
  inode->durable = inode->data;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::OpenForWrite(
    const std::string& path, OpenMode mode) {
  Delay("OpenForWrite");
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("OpenForWrite", path));
  std::shared_ptr<Inode>& inode = files_[path];
  if (inode != nullptr && mode == OpenMode::kCreateNew)
    return absl::AlreadyExistsError(absl::StrCat("open ", path));
  if (inode == nullptr) inode = std::make_shared<Inode>();
  if (mode == OpenMode::kTruncate) inode->data.clear();
  return std::unique_ptr<WritableFile>(new File(this, path, inode, life_));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FaultFileSystem::OpenForRead(
    const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("OpenForRead", path, /*read=*/true));
  const auto it = files_.find(path);
  if (it == files_.end()) return NotThere("open", path);
  return std::unique_ptr<RandomAccessFile>(new Reader(this, path, it->second));
}

absl::StatusOr<uint64_t> FaultFileSystem::FileSize(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("FileSize", path, /*read=*/true));
  const auto it = files_.find(path);
  if (it == files_.end()) return NotThere("stat", path);
  return it->second->data.size();
}

bool FaultFileSystem::Exists(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  return files_.count(path) > 0 || directories_.count(path) > 0;
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(
    const std::string& directory) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("List", directory, /*read=*/true));
  std::set<std::string> names;
  const std::string prefix = directory + "/";
  const auto add = [&](const std::string& path) {
    if (!absl::StartsWith(path, prefix)) return;
    const std::string rest = path.substr(prefix.size());
    names.insert(rest.substr(0, rest.find('/')));
  };
  for (const auto& [path, inode] : files_) add(path);
  for (const std::string& path : directories_) add(path);
  if (names.empty() && directories_.count(directory) == 0)
    return NotThere("list", directory);
  return std::vector<std::string>(names.begin(), names.end());
}

absl::Status FaultFileSystem::CreateDirectories(const std::string& directory) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("CreateDirectories", directory));
  // Directories themselves are not lost: their creation is not under test.
  directories_.insert(directory);
  return absl::OkStatus();
}

absl::Status FaultFileSystem::Rename(const std::string& from,
                                     const std::string& to) {
  absl::MutexLock lock(&mutex_);
  const FaultKind kind = Begin("Rename", to, false);
  if (kind != FaultKind::kNone && kind != FaultKind::kTornRename)
    return ErrorOf(kind, "Rename", to);
  bool any = false;
  std::map<std::string, std::shared_ptr<Inode>> renamed;
  for (auto it = files_.begin(); it != files_.end();) {
    if (it->first == from || absl::StartsWith(it->first, from + "/")) {
      any = true;
      renamed[to + it->first.substr(from.size())] = it->second;
      it = files_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto& [path, inode] : renamed) files_[path] = inode;
  std::set<std::string> moved;
  for (auto it = directories_.begin(); it != directories_.end();) {
    if (*it == from || absl::StartsWith(*it, from + "/")) {
      any = true;
      moved.insert(to + it->substr(from.size()));
      it = directories_.erase(it);
    } else {
      ++it;
    }
  }
  directories_.insert(moved.begin(), moved.end());
  if (!any) return NotThere("rename", from);
  return ErrorOf(kind, "Rename", to);
}

absl::Status FaultFileSystem::Link(const std::string& from,
                                   const std::string& to) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("Link", to));
  const auto it = files_.find(from);
  if (it == files_.end()) return NotThere("link", from);
  const std::shared_ptr<Inode> inode = it->second;
  if (!files_.emplace(to, inode).second)
    return absl::AlreadyExistsError(absl::StrCat("link ", to));
  return absl::OkStatus();
}

absl::Status FaultFileSystem::SyncFile(const std::string& path) {
  std::shared_ptr<Inode> inode;
  uint64_t life = 0;
  {
    absl::MutexLock lock(&mutex_);
    // If descriptors are exhausted, this fails, and nothing else has happened.
    RP_RETURN_IF_ERROR(Check("OpenForSync", path, /*read=*/true));
    const auto it = files_.find(path);
    if (it == files_.end()) return NotThere("open", path);
    inode = it->second;
    life = life_;
  }
  return SyncInode(inode, life, path);
}

absl::Status FaultFileSystem::Delete(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("Delete", path));
  return files_.erase(path) > 0 ? absl::OkStatus() : NotThere("delete", path);
}

absl::Status FaultFileSystem::DeleteTree(const std::string& directory) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("DeleteTree", directory));
  const std::string prefix = directory + "/";
  for (auto it = files_.begin(); it != files_.end();)
    it = absl::StartsWith(it->first, prefix) ? files_.erase(it) : std::next(it);
  for (auto it = directories_.begin(); it != directories_.end();) {
    it = *it == directory || absl::StartsWith(*it, prefix)
             ? directories_.erase(it)
             : std::next(it);
  }
  return absl::OkStatus();
}

absl::Status FaultFileSystem::Truncate(const std::string& path, uint64_t size) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("Truncate", path));
  const auto it = files_.find(path);
  if (it == files_.end()) return NotThere("truncate", path);
  it->second->data.resize(size);
  return absl::OkStatus();
}

absl::Status FaultFileSystem::SyncDirectory(const std::string& directory) {
  Delay("SyncDirectory");
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("fsync", directory));
  for (auto it = durable_files_.begin(); it != durable_files_.end();) {
    it = DirectoryOf(it->first) == directory && files_.count(it->first) == 0
             ? durable_files_.erase(it)
             : std::next(it);
  }
  for (const auto& [path, inode] : files_) {
    if (DirectoryOf(path) == directory) durable_files_[path] = inode;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultFileSystem::Lock(
    const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("Lock", path));
  if (!locks_.insert(path).second)
    return absl::FailedPreconditionError(absl::StrCat(path, " is held"));
  // Creates the file like open(O_CREAT); it is never written.
  if (files_.count(path) == 0) files_[path] = std::make_shared<Inode>();
  return std::unique_ptr<FileLock>(new Held(this, path));
}

absl::StatusOr<uint64_t> FaultFileSystem::FreeBytes(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("FreeBytes", path, /*read=*/true));
  if (capacity_ == UINT64_MAX) return uint64_t{1} << 50;
  const uint64_t used = UsedLocked();
  return capacity_ - std::min(capacity_, used);
}

absl::StatusOr<uint64_t> FaultFileSystem::CapacityBytes(
    const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(Check("CapacityBytes", path, /*read=*/true));
  return capacity_ == UINT64_MAX ? uint64_t{1} << 50 : capacity_;
}

}  // namespace rankprobe::testing
