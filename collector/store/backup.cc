// SPDX-License-Identifier: Apache-2.0
#include "collector/store/backup.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "collector/store/row_writer.h"
#include "common/base/status_macros.h"
#include "common/io/published_ranks.h"

namespace rankprobe {
namespace {

constexpr size_t kReadBytes = 1 << 20;

absl::StatusOr<uint64_t> CopyIndex(Index* from, FileSystem* file_system,
                                   const std::string& directory) {
  IndexOptions options{.directory = directory,
                       .write_buffer_bytes = 4 << 20,
                       .cache_bytes = 1 << 20,
                       .file_system = file_system};
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<Index> to,
                      OpenLevelDbIndex(options));
  RowWriter rows(to.get());
  RP_RETURN_IF_ERROR(
      from->Scan("", [&](absl::string_view key, absl::string_view value) {
        return rows.Put(key, value);
      }));
  RP_RETURN_IF_ERROR(rows.Finish(/*sync=*/true));
  return rows.rows();
}

absl::Status CopyFile(FileSystem* file_system, const std::string& from,
                      FileSystem* target, const std::string& to,
                      uint64_t size) {
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> in,
                      file_system->OpenForRead(from));
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> out,
      target->OpenForWrite(to, FileSystem::OpenMode::kCreateNew));
  std::string data;
  for (uint64_t at = 0; at < size; at += data.size()) {
    data.resize(std::min<uint64_t>(kReadBytes, size - at));
    RP_RETURN_IF_ERROR(in->Read(at, absl::MakeSpan(data)));
    RP_RETURN_IF_ERROR(out->Append(absl::string_view(data)));
  }
  RP_RETURN_IF_ERROR(out->Sync());
  return out->Close();
}

std::string Parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

absl::StatusOr<v1::BackupReport> Fill(Index* index, PayloadStore* payloads,
                                      FileSystem* file_system,
                                      FileSystem* target,
                                      const std::string& directory, bool copy) {
  v1::BackupReport report;
  const std::string segments = directory + "/segments";
  RP_RETURN_IF_ERROR(target->CreateDirectories(segments));
  RP_RETURN_IF_ERROR(target->CreateDirectories(directory + "/index"));
  // The index is copied first: every chunk that its snapshot points at is then
  // already in a segment.
  RP_ASSIGN_OR_RETURN(const uint64_t rows,
                      CopyIndex(index, target, directory + "/index"));
  report.set_index_rows(rows);
  for (const PayloadStore::SegmentInfo& segment : payloads->Segments()) {
    const std::string from = payloads->SegmentPath(segment.number);
    const std::string to = absl::StrCat(segments, from.substr(from.rfind('/')));
    // An open segment is still being written, so it cannot be hard-linked.
    if (!copy && segment.closed && target->Link(from, to).ok()) {
      report.set_linked(report.linked() + 1);
    } else {
      RP_RETURN_IF_ERROR(
          CopyFile(file_system, from, target, to, segment.size_bytes));
    }
    report.set_segments(report.segments() + 1);
    report.set_segment_bytes(report.segment_bytes() + segment.size_bytes);
  }
  RP_RETURN_IF_ERROR(target->SyncDirectory(segments));
  RP_RETURN_IF_ERROR(target->SyncDirectory(directory + "/index"));
  RP_RETURN_IF_ERROR(target->SyncDirectory(directory));
  return report;
}

}  // namespace

absl::StatusOr<v1::BackupReport> BackupArchive(
    Index* index, PayloadStore* payloads, FileSystem* file_system,
    FileSystem* target, const std::string& directory, bool copy) {
  if (target->Exists(directory)) {
    return absl::AlreadyExistsError(
        absl::StrCat(directory, " exists; a backup needs a new directory"));
  }
  const std::string temporary = directory + ".tmp";
  const auto claim = [&] {
    return ClaimDirectory(target, temporary,
                          absl::StrCat("Unfinished backup to ", directory));
  };
  // Deletes the rest of an interrupted backup.
  if (target->Exists(temporary)) {
    RP_RETURN_IF_ERROR(claim());
    RP_RETURN_IF_ERROR(DeleteClaimedDirectory(target, temporary));
  }
  RP_RETURN_IF_ERROR(claim());
  absl::StatusOr<v1::BackupReport> report =
      Fill(index, payloads, file_system, target, temporary, copy);
  if (report.ok()) {
    absl::Status placed = target->Rename(temporary, directory);
    // The claim is deleted after the rename: a temporary directory without a
    // claim would belong to no backup and block the next one. A claim inside a
    // finished backup does no harm.
    if (placed.ok()) {
      target->Delete(absl::StrCat(directory, "/", kClaimFile)).IgnoreError();
      placed = target->SyncDirectory(Parent(directory));
    }
    if (!placed.ok()) report = placed;
  }
  if (!report.ok()) DeleteClaimedDirectory(target, temporary).IgnoreError();
  return report;
}

}  // namespace rankprobe
