// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/shard_log.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collector/sealed/log_heads.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"
#include "common/io/whole_file.h"

namespace rankprobe {
namespace {

constexpr char kEntryFile[] = "entry";
constexpr size_t kEntriesListed = 1000;

}  // namespace

ShardLog::ShardLog(const std::string& directory, std::string run,
                   std::string shard, ObjectStore* store,
                   FileSystem* file_system)
    : directory_(absl::StrCat(directory, "/", sealed::RunKey(run))),
      run_(std::move(run)),
      run_key_(sealed::RunKey(run_)),
      shard_(std::move(shard)),
      store_(store),
      file_system_(file_system) {}

std::string ShardLog::NextFile(const std::string& name) const {
  return absl::StrCat(directory_, "/next/", name);
}

std::string ShardLog::StoredFile(uint64_t sequence) const {
  return absl::StrFormat("%020d", sequence);
}

absl::StatusOr<std::string> ShardLog::ReadSmall(const std::string& path) const {
  absl::StatusOr<std::string> bytes =
      ReadWholeFile(file_system_, path, sealed::kMaxEntryBytes);
  // This collector writes no file of that size, so it is damaged.
  if (absl::IsResourceExhausted(bytes.status()))
    return absl::DataLossError(bytes.status().message());
  return bytes;
}

absl::Status ShardLog::WriteSmall(const std::string& directory,
                                  const std::string& name,
                                  absl::string_view bytes) {
  const std::string path = absl::StrCat(directory, "/", name);
  const std::string unfinished = absl::StrCat(directory, "/.", name);
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system_->OpenForWrite(unfinished, FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(file->Append(bytes));
  RP_RETURN_IF_ERROR(file->Sync());
  RP_RETURN_IF_ERROR(file->Close());
  // The directory entries of the objects must be on the disk before that of
  // this file.
  RP_RETURN_IF_ERROR(file_system_->SyncDirectory(directory));
  RP_RETURN_IF_ERROR(file_system_->Rename(unfinished, path));
  return file_system_->SyncDirectory(directory);
}

absl::Status ShardLog::Open(
    const std::function<void(const v1::SealedLogEntry&)>& on_entry) {
  const std::string stored = absl::StrCat(directory_, "/stored");
  for (const std::string& directory :
       {directory_, stored, absl::StrCat(directory_, "/next")})
    RP_RETURN_IF_ERROR(file_system_->CreateDirectories(directory));
  RP_RETURN_IF_ERROR(file_system_->SyncDirectory(directory_));
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system_->List(stored));
  std::string last_bytes;
  for (const std::string& name : names) {
    uint64_t sequence = 0;
    if (name[0] == '.' || !absl::SimpleAtoi(name, &sequence)) continue;
    // After a gap the store's own log is read.
    if (sequence != last_ + 1) break;
    const absl::StatusOr<std::string> bytes =
        ReadSmall(absl::StrCat(stored, "/", name));
    if (!bytes.ok()) break;
    const absl::StatusOr<v1::SealedLogEntry> entry =
        sealed::DecodeEntry(*bytes);
    if (!entry.ok()) break;
    on_entry(*entry);
    last_ = sequence;
    last_bytes = *bytes;
    if (entry->has_sweep()) last_sweep_ = sequence;
  }
  if (last_ > 0) {
    last_digest_ = sealed::EntryDigest(last_bytes);
    RP_RETURN_IF_ERROR(CheckLast(last_bytes));
  }
  // Usually this is one request that finds nothing.
  while (true) {
    RP_ASSIGN_OR_RETURN(
        const ObjectList list,
        store_->List(sealed::LogPrefix(run_key_, shard_),
                     sealed::LogKey(run_key_, shard_, last_), kEntriesListed));
    for (const ObjectInfo& object : list.objects) {
      const std::string key = sealed::LogKey(run_key_, shard_, last_ + 1);
      if (object.key != key) {
        return absl::DataLossError(
            absl::StrCat("entry ", key, " of the log is missing"));
      }
      RP_ASSIGN_OR_RETURN(
          const std::string bytes,
          GetObject(store_, object.key, sealed::kMaxEntryBytes));
      // The entry of the set in progress is noted by StoreNext.
      if (HasNext()) {
        RP_ASSIGN_OR_RETURN(const std::string ours,
                            ReadSmall(NextFile(kEntryFile)));
        if (ours == bytes) return absl::OkStatus();
        RP_ASSIGN_OR_RETURN(const v1::SealedLogEntry next,
                            sealed::DecodeEntry(ours));
        if (next.sequence() == last_ + 1) {
          RP_RETURN_IF_ERROR(GiveWay(bytes));
          // StoreNext returns the error.
          if (fenced()) return absl::OkStatus();
        }
      }
      RP_ASSIGN_OR_RETURN(const v1::SealedLogEntry entry,
                          sealed::DecodeEntry(bytes));
      RP_RETURN_IF_ERROR(NoteStored(bytes, last_ + 1));
      on_entry(entry);
      ++last_;
      last_digest_ = sealed::EntryDigest(bytes);
      if (entry.has_sweep()) last_sweep_ = last_;
    }
    if (!list.more) return absl::OkStatus();
  }
}

absl::Status ShardLog::CheckLast(const std::string& bytes) {
  const std::string key = sealed::LogKey(run_key_, shard_, last_);
  RP_ASSIGN_OR_RETURN(
      const ObjectList list,
      store_->List(
          sealed::LogPrefix(run_key_, shard_),
          last_ == 1 ? "" : sealed::LogKey(run_key_, shard_, last_ - 1),
          /*max_objects=*/1));
  if (!list.objects.empty() && list.objects[0].key == key)
    return absl::OkStatus();
  const absl::Status put =
      store_->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
  if (!absl::IsAlreadyExists(put)) RP_RETURN_IF_ERROR(put);
  repaired_ = absl::StrCat("entry ", key, " of ", store_->name(),
                           " was missing, and is put there again");
  return absl::OkStatus();
}

bool ShardLog::HasNext() const {
  return file_system_->Exists(NextFile(kEntryFile));
}

absl::StatusOr<std::string> ShardLog::BeginNext() {
  RP_RETURN_IF_ERROR(fenced_);
  if (HasNext())
    return absl::FailedPreconditionError("a set is on its way already");
  const std::string directory = absl::StrCat(directory_, "/next");
  RP_RETURN_IF_ERROR(file_system_->DeleteTree(directory));
  RP_RETURN_IF_ERROR(file_system_->CreateDirectories(directory));
  RP_RETURN_IF_ERROR(file_system_->SyncDirectory(directory_));
  return directory;
}

absl::Status ShardLog::DecideNext(v1::SealedLogEntry entry) {
  entry.set_format(sealed::kFormat);
  entry.set_run(run_);
  entry.set_shard(shard_);
  entry.set_sequence(last_ + 1);
  entry.set_previous(last_digest_);
  const std::string bytes = sealed::EncodeEntry(entry);
  if (bytes.size() > sealed::kMaxEntryBytes)
    return absl::ResourceExhaustedError("an entry of the log is too large");
  return WriteSmall(absl::StrCat(directory_, "/next"), kEntryFile, bytes);
}

absl::Status ShardLog::PutName() {
  if (named_) return absl::OkStatus();
  v1::SealedRunName name;
  name.set_run(run_);
  const absl::Status put =
      store_->Put(sealed::NameKey(run_key_), name.SerializeAsString(),
                  ObjectStore::PutMode::kIfAbsent);
  if (!absl::IsAlreadyExists(put)) RP_RETURN_IF_ERROR(put);
  // Put before any object: a sweep lists objects first, and then these keys.
  const absl::Status shard =
      store_->Put(sealed::ShardKey(run_key_, shard_), shard_,
                  ObjectStore::PutMode::kIfAbsent);
  if (!absl::IsAlreadyExists(shard)) RP_RETURN_IF_ERROR(shard);
  named_ = true;
  return absl::OkStatus();
}

std::string ShardLog::origin() const {
  return absl::StrCat(shard_, "/", last_sweep_);
}

// The entry file is deleted before the sweep is noted, because a noted number
// counts as stored.
absl::Status ShardLog::GiveWay(const std::string& theirs) {
  const absl::StatusOr<v1::SealedLogEntry> entry = sealed::DecodeEntry(theirs);
  if (entry.ok() && entry->has_sweep()) {
    RP_RETURN_IF_ERROR(file_system_->Delete(NextFile(kEntryFile)));
    RP_RETURN_IF_ERROR(
        file_system_->SyncDirectory(absl::StrCat(directory_, "/next")));
    return absl::OkStatus();
  }
  fenced_ = absl::FailedPreconditionError(absl::StrCat(
      "another collector writes the log ", shard_, " of ", store_->name(),
      ": this data directory is a copy of another one's. Nothing more is "
      "stored; all is kept here. Stop it, remove the directory `sealing` "
      "below its data directory, and start it: all is then stored under a "
      "log of its own"));
  return absl::OkStatus();
}

absl::Status ShardLog::PutObjects(const v1::SealedLogEntry& entry) {
  for (const v1::SealedObject& pack : entry.packs()) {
    RP_RETURN_IF_ERROR(store_->PutFile(sealed::PackKey(run_key_, pack.name()),
                                       file_system_, NextFile(pack.name())));
  }
  if (entry.has_records()) {
    RP_RETURN_IF_ERROR(
        store_->PutFile(sealed::RecordsKey(run_key_, entry.records().name()),
                        file_system_, NextFile(entry.records().name())));
  }
  return absl::OkStatus();
}

absl::Status ShardLog::NoteStored(const std::string& bytes, uint64_t sequence) {
  return WriteSmall(absl::StrCat(directory_, "/stored"), StoredFile(sequence),
                    bytes);
}

absl::StatusOr<v1::SealedLogEntry> ShardLog::StoreNext() {
  RP_RETURN_IF_ERROR(fenced_);
  RP_ASSIGN_OR_RETURN(const std::string bytes, ReadSmall(NextFile(kEntryFile)));
  RP_ASSIGN_OR_RETURN(v1::SealedLogEntry entry, sealed::DecodeEntry(bytes));
  const std::string key = sealed::LogKey(run_key_, shard_, entry.sequence());
  // Not if it was already noted before a crash that left the entry file here.
  if (entry.sequence() > last_) {
    RP_RETURN_IF_ERROR(PutName());
    RP_RETURN_IF_ERROR(PutObjects(entry));
    const absl::Status put =
        store_->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
    if (!absl::IsAlreadyExists(put)) RP_RETURN_IF_ERROR(put);
    // Read back even after a success, because a noted entry may be freed here.
    RP_ASSIGN_OR_RETURN(const std::string there,
                        GetObject(store_, key, sealed::kMaxEntryBytes));
    if (there != bytes) {
      if (put.ok()) {
        return absl::DataLossError(absl::StrCat(
            key, " of ", store_->name(), " has other bytes than were put"));
      }
      RP_RETURN_IF_ERROR(GiveWay(there));
      RP_RETURN_IF_ERROR(fenced_);
      swept_ = true;
      return absl::AbortedError(absl::StrCat(
          "a janitor cleans ", store_->name(), ": the set is made again"));
    }
    const std::string digest = sealed::EntryDigest(bytes);
    RP_RETURN_IF_ERROR(
        sealed::PutHead(store_, run_, shard_, {entry.sequence(), digest}));
    RP_RETURN_IF_ERROR(NoteStored(bytes, entry.sequence()));
    last_ = entry.sequence();
    last_digest_ = digest;
  }
  RP_RETURN_IF_ERROR(file_system_->Delete(NextFile(kEntryFile)));
  RP_RETURN_IF_ERROR(
      file_system_->SyncDirectory(absl::StrCat(directory_, "/next")));
  // Files that cannot be deleted now are deleted with the next set.
  for (const v1::SealedObject& pack : entry.packs())
    file_system_->Delete(NextFile(pack.name())).IgnoreError();
  if (entry.has_records())
    file_system_->Delete(NextFile(entry.records().name())).IgnoreError();
  return entry;
}

}  // namespace rankprobe
