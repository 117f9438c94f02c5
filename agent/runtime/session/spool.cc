// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/spool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {
namespace {

constexpr char kMagic[] = "RPQ3";
constexpr size_t kMagicBytes = 4;
constexpr size_t kHeadBytes = 8;
// Longer than any frame; a larger length is invalid.
constexpr uint32_t kMaxEntryBytes = 4 << 20;
constexpr char kLockSuffix[] = ".lock";
constexpr char kFileSuffix[] = ".spool";
constexpr size_t kIncarnationDigits = 16;

std::string PathOf(const std::string& directory, const v1::Identity& identity) {
  return absl::StrCat(directory, "/",
                      absl::Hex(identity.incarnation(), absl::kZeroPad16));
}

absl::Status AppendFrame(WritableFile* file, absl::string_view head,
                         absl::string_view tail, absl::string_view foot) {
  std::array<char, kHeadBytes> header;
  const auto length =
      static_cast<uint32_t>(head.size() + tail.size() + foot.size());
  // All supported hosts are little-endian.
  const uint32_t crc = Crc32c(foot, Crc32c(tail, Crc32c(head)));
  std::memcpy(header.data(), &length, 4);
  std::memcpy(header.data() + 4, &crc, 4);
  const absl::string_view pieces[] = {
      {header.data(), header.size()}, head, tail, foot};
  return file->Append(pieces);
}

absl::Status CheckRoom(const Spool::Options& options, FileSystem* file_system) {
  if (options.min_free_bytes == 0) return absl::OkStatus();
  const absl::StatusOr<uint64_t> free =
      file_system->FreeBytes(options.directory);
  if (!free.ok() || *free >= options.min_free_bytes + options.file_bytes)
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the disk of ", options.directory, " is full"));
}

}  // namespace

Spool::Spool(const Options& options, const v1::Identity& identity,
             FileSystem* file_system, std::string lock_path,
             std::unique_ptr<FileLock> lock)
    : options_(options),
      identity_(identity),
      lock_path_(std::move(lock_path)),
      file_system_(file_system),
      lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<Spool>> Spool::Open(const Options& options,
                                                   const v1::Identity& identity,
                                                   FileSystem* file_system) {
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(options.directory));
  RP_RETURN_IF_ERROR(CheckRoom(options, file_system));
  std::string lock_path =
      absl::StrCat(PathOf(options.directory, identity), kLockSuffix);
  RP_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock,
                      file_system->Lock(lock_path));
  return std::unique_ptr<Spool>(new Spool(
      options, identity, file_system, std::move(lock_path), std::move(lock)));
}

absl::Status Spool::NextFile() {
  file_.reset();
  RP_RETURN_IF_ERROR(CheckRoom(options_, file_system_));
  Part part;
  part.path =
      absl::StrCat(PathOf(options_.directory, identity_), ".",
                   absl::Dec(next_number_++, absl::kZeroPad8), kFileSuffix);
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<WritableFile> file,
      file_system_->OpenForWrite(part.path, FileSystem::OpenMode::kCreateNew));
  v1::Hello hello;
  *hello.mutable_identity() = identity_;
  hello.set_incarnation_secret(options_.secret);
  const std::string text = hello.SerializeAsString();
  absl::Status begun = file->Append(absl::string_view(kMagic, kMagicBytes));
  if (begun.ok()) begun = AppendFrame(file.get(), text, {}, {});
  if (!begun.ok()) {
    // The file is not in parts_, so nothing would delete it later.
    file.reset();
    file_system_->Delete(part.path).IgnoreError();
    return begun;
  }
  part.bytes = kMagicBytes + kHeadBytes + text.size();
  bytes_ += part.bytes;
  parts_.push_back(std::move(part));
  file_ = std::move(file);
  return absl::OkStatus();
}

absl::Status Spool::Append(uint64_t sequence, absl::string_view head,
                           absl::string_view tail, absl::string_view foot) {
  const uint64_t size = kHeadBytes + head.size() + tail.size() + foot.size();
  // Everything so far, with the skipped frames, is committed: no gap is left.
  if (refusing_ && parts_.empty() && committed_ >= skipped_) refusing_ = false;
  if (refusing_ || bytes_ + size > options_.max_bytes) {
    Skip(sequence);
    return absl::ResourceExhaustedError(
        absl::StrCat("the spool ", options_.directory, " is full"));
  }
  absl::Status status;
  if (file_ == nullptr || parts_.back().bytes >= options_.file_bytes)
    status = NextFile();
  if (status.ok()) status = AppendFrame(file_.get(), head, tail, foot);
  if (!status.ok()) {
    Skip(sequence);
    // The file may end with a torn frame, so later frames need another one.
    file_.reset();
    return status;
  }
  parts_.back().bytes += size;
  parts_.back().last_sequence = sequence;
  last_sequence_ = sequence;
  bytes_ += size;
  return absl::OkStatus();
}

void Spool::Skip(uint64_t sequence) {
  // The collector would refuse frames after a gap.
  refusing_ = true;
  skipped_ = sequence;
}

void Spool::Committed(uint64_t sequence) {
  committed_ = std::max(committed_, sequence);
  while (!parts_.empty() && parts_.front().last_sequence <= committed_) {
    // The file that is being written is kept while it is small: a new file for
    // each frame would cost more than sending a few frames twice.
    if (parts_.size() == 1 && !refusing_ &&
        parts_.front().bytes < options_.file_bytes / 4)
      break;
    RemoveFirst();
  }
}

void Spool::RemoveFirst() {
  if (parts_.size() == 1) file_.reset();
  file_system_->Delete(parts_.front().path).IgnoreError();
  bytes_ -= parts_.front().bytes;
  parts_.pop_front();
}

Spool::~Spool() {
  if (last_sequence_ > committed_) return;
  while (!parts_.empty()) RemoveFirst();
  // The lock file last: left alone, it is removed by the next Find.
  file_system_->Delete(lock_path_).IgnoreError();
}

bool IsOwnFile(const std::string& path) {
  struct stat found;
  return ::lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
         found.st_uid == ::geteuid() &&
         (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

namespace {

// Names of the spools that these files belong to, each with whether its lock
// file is among them. A spool without one is still a spool: its process was
// killed while it removed its files.
std::map<std::string, bool> SpoolsOf(const std::vector<std::string>& names) {
  std::map<std::string, bool> spools;
  for (const std::string& name : names) {
    if (absl::EndsWith(name, kLockSuffix)) {
      spools[std::string(absl::StripSuffix(name, kLockSuffix))] = true;
    } else if (absl::EndsWith(name, kFileSuffix)) {
      const std::string incarnation = name.substr(0, name.find('.'));
      if (incarnation.size() == kIncarnationDigits &&
          std::all_of(incarnation.begin(), incarnation.end(),
                      absl::ascii_isxdigit))
        spools.try_emplace(incarnation, false);
    }
  }
  return spools;
}

std::vector<std::string> FilesOf(const std::string& directory,
                                 const std::vector<std::string>& names,
                                 const std::string& spool) {
  const std::string prefix = absl::StrCat(spool, ".");
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, prefix) && absl::EndsWith(name, kFileSuffix))
      files.push_back(absl::StrCat(directory, "/", name));
  }
  return files;
}

}  // namespace

std::vector<std::unique_ptr<OrphanSpool>> OrphanSpool::Find(
    const std::string& directory, FileSystem* file_system,
    const IsOwnFn& is_own, int* passed_over) {
  std::vector<std::unique_ptr<OrphanSpool>> found;
  const absl::StatusOr<std::vector<std::string>> names =
      file_system->List(directory);
  if (!names.ok()) return found;
  for (const auto& [name, has_lock] : SpoolsOf(*names)) {
    const std::string lock_path =
        absl::StrCat(directory, "/", name, kLockSuffix);
    const auto all_own = [&](const std::vector<std::string>& files) {
      return std::all_of(files.begin(), files.end(), is_own);
    };
    // Checked before any file of the spool is opened.
    if ((has_lock && !is_own(lock_path)) ||
        !all_own(FilesOf(directory, *names, name))) {
      ++*passed_over;
      continue;
    }
    absl::StatusOr<std::unique_ptr<FileLock>> lock =
        file_system->Lock(lock_path);
    // The spool's process is alive.
    if (!lock.ok()) continue;
    // The process may have created another file, and ended, since the first
    // listing.
    const absl::StatusOr<std::vector<std::string>> now =
        file_system->List(directory);
    if (!now.ok()) continue;
    std::vector<std::string> files = FilesOf(directory, *now, name);
    if (!is_own(lock_path) || !all_own(files)) {
      ++*passed_over;
      continue;
    }
    if (files.empty()) {
      // The process was killed before its first file, or after its last one.
      file_system->Delete(lock_path).IgnoreError();
      continue;
    }
    std::unique_ptr<OrphanSpool> spool(new OrphanSpool(
        file_system, lock_path, std::move(files), *std::move(lock)));
    const absl::StatusOr<Frame> first = spool->Next();
    if (first.ok()) {
      spool->Rewind();
      found.push_back(std::move(spool));
    } else if (absl::IsNotFound(first.status())) {
      // The process was killed before its first frame was complete.
      spool->Remove().IgnoreError();
    }
  }
  return found;
}

void OrphanSpool::Rewind() {
  file_index_ = 0;
  file_.reset();
}

absl::StatusOr<std::string> OrphanSpool::ReadFrame() {
  std::array<char, kHeadBytes> header;
  if (size_ - at_ < kHeadBytes) return absl::NotFoundError("end");
  RP_RETURN_IF_ERROR(file_->Read(at_, absl::MakeSpan(header)));
  uint32_t length = 0, crc = 0;
  std::memcpy(&length, header.data(), 4);
  std::memcpy(&crc, header.data() + 4, 4);
  if (length > kMaxEntryBytes || length > size_ - at_ - kHeadBytes)
    return absl::NotFoundError("a torn frame");
  std::string bytes(length, '\0');
  RP_RETURN_IF_ERROR(file_->Read(at_ + kHeadBytes, absl::MakeSpan(bytes)));
  if (Crc32c(bytes) != crc) return absl::NotFoundError("a torn frame");
  at_ += kHeadBytes + length;
  return bytes;
}

absl::StatusOr<OrphanSpool::Frame> OrphanSpool::Next() {
  while (file_index_ < files_.size()) {
    if (file_ == nullptr) {
      const std::string& path = files_[file_index_];
      RP_ASSIGN_OR_RETURN(size_, file_system_->FileSize(path));
      RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForRead(path));
      at_ = kMagicBytes;
      std::array<char, kMagicBytes> magic{};
      if (size_ >= kMagicBytes)
        RP_RETURN_IF_ERROR(file_->Read(0, absl::MakeSpan(magic)));
      if (size_ >= kMagicBytes &&
          std::memcmp(magic.data(), kMagic, kMagicBytes) != 0)
        return absl::DataLossError(absl::StrCat(path, " is not a spool"));
      const absl::StatusOr<std::string> hello =
          size_ >= kMagicBytes
              ? ReadFrame()
              : absl::StatusOr<std::string>(absl::NotFoundError("torn"));
      if (!hello.ok() || !hello_.ParseFromString(*hello)) {
        // For example, the file was begun on a full disk; later frames have
        // their own file.
        file_.reset();
        ++file_index_;
        continue;
      }
    }
    absl::StatusOr<std::string> bytes = ReadFrame();
    if (bytes.ok()) {
      v1::UploadFrame frame;
      if (!frame.ParseFromString(*bytes))
        return absl::NotFoundError("a frame that cannot be read");
      return Frame{frame.sequence(), *std::move(bytes)};
    }
    if (!absl::IsNotFound(bytes.status())) return bytes.status();
    file_.reset();
    ++file_index_;
  }
  return absl::NotFoundError("end of the spool");
}

absl::Status OrphanSpool::Remove() {
  file_.reset();
  for (const std::string& file : files_)
    RP_RETURN_IF_ERROR(file_system_->Delete(file));
  return file_system_->Delete(lock_path_);
}

}  // namespace rankprobe
