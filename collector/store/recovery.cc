// SPDX-License-Identifier: Apache-2.0
#include "collector/store/recovery.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "common/io/whole_file.h"
#include "common/text/visible_text.h"

namespace rankprobe {

absl::StatusOr<bool> IsFresh(const std::string& data_dir,
                             FileSystem* file_system) {
  const std::string index = data_dir + "/index",
                    segments = data_dir + "/segments";
  if (file_system->Exists(index + "/CURRENT")) return false;
  std::string found;
  if (file_system->Exists(segments)) {
    RP_ASSIGN_OR_RETURN(const PayloadStore::Sizes sizes,
                        PayloadStore::ListSegments(segments, file_system));
    for (const auto& [number, size] : sizes) {
      if (size > 0) found = absl::StrCat(sizes.size(), " segments");
    }
  }
  if (found.empty() && file_system->Exists(index)) {
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        file_system->List(index));
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".log") && !absl::EndsWith(name, ".ldb") &&
          !absl::EndsWith(name, ".sst"))
        continue;
      RP_ASSIGN_OR_RETURN(
          const uint64_t size,
          file_system->FileSize(absl::StrCat(index, "/", name)));
      if (size > 0) found = absl::StrCat("index/", name);
    }
  }
  // Written after the first sync of every index.
  if (found.empty() && file_system->Exists(data_dir + "/synced"))
    found = "a trace of an index";
  if (found.empty()) return true;
  return absl::DataLossError(
      absl::StrCat("index/CURRENT is missing, but ", found,
                   found.back() == 's' ? " are" : " is",
                   " there: a new index would lose what is stored"));
}

namespace {

std::string RebuildingPath(const std::string& data_dir) {
  return data_dir + "/rebuilding";
}

}  // namespace

absl::Status NoteRebuildBegun(const std::string& data_dir,
                              FileSystem* file_system) {
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system->OpenForWrite(RebuildingPath(data_dir),
                                FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(file->Close());
  // Synced before the rebuild begins, so that an interrupted one is detected.
  return file_system->SyncDirectory(data_dir);
}

absl::Status NoteRebuildEnded(const std::string& data_dir,
                              FileSystem* file_system) {
  RP_RETURN_IF_ERROR(file_system->Delete(RebuildingPath(data_dir)));
  return file_system->SyncDirectory(data_dir);
}

absl::Status CheckRebuildEnded(const std::string& data_dir,
                               FileSystem* file_system) {
  if (!file_system->Exists(RebuildingPath(data_dir))) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "rebuilding the index was interrupted (", RebuildingPath(data_dir), ")"));
}

absl::StatusOr<PayloadStore::Known> KnownSegments(Index* index,
                                                  const std::string& directory,
                                                  FileSystem* file_system) {
  PayloadStore::Known known;
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> clean,
                      index->Get(keys::kClean));
  if (clean.has_value()) {
    PayloadStore::Sizes there;
    if (file_system->Exists(directory)) {
      RP_ASSIGN_OR_RETURN(there,
                          PayloadStore::ListSegments(directory, file_system));
    }
    const std::map<uint64_t, uint64_t> at_end = keys::ParseClean(*clean);
    known.clean = std::all_of(
        at_end.begin(), at_end.end(), [&there](const auto& segment) {
          const auto it = there.find(segment.first);
          return it != there.end() && it->second >= segment.second;
        });
  }
  if (known.clean) return known;
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                      index->Get(keys::kSynced));
  const std::optional<keys::Synced> synced =
      keys::ParseSynced(value.value_or(""));
  if (synced.has_value()) known.synced = {synced->segment, synced->offset};
  for (const char* const table : {"k", "q"}) {
    RP_RETURN_IF_ERROR(
        index->Scan(table, [&](absl::string_view, absl::string_view row_bytes) {
          v1::ChunkRow row;
          if (ParseRow(row_bytes, &row)) {
            uint64_t& end = known.named_ends[row.segment()];
            end = std::max(end,
                           row.offset_bytes() + PayloadStore::StoredBytes(row));
          }
          return absl::OkStatus();
        }));
  }
  return known;
}

absl::Status RecoverChunks(Index* index, PayloadStore* segments,
                           RecoveryReport* report) {
  // Prefixes of all chunks of a payload, or of one sender's.
  std::set<std::string> torn;
  std::map<std::string, v1::ChunkRow> damaged;
  const auto look = [&](absl::string_view key,
                        absl::string_view value) -> absl::Status {
    v1::ChunkRow row;
    // Verify reports rows that cannot be read.
    if (!ParseRow(value, &row) || !keys::ParseChunkOffset(key).has_value())
      return absl::OkStatus();
    const bool may_be_torn = segments->MayBeTorn(row);
    bool sound = segments->Contains(row);
    if (sound && may_be_torn) {
      std::string data;
      const absl::Status read = segments->Read(row, &data);
      if (!read.ok() && !absl::IsDataLoss(read)) return read;
      sound = read.ok();
    }
    if (sound) return absl::OkStatus();
    const std::string prefix(key.substr(0, key.size() - 8));
    // An unfinished payload is dropped in both cases: its sender has to send it
    // again.
    if (may_be_torn || key[0] == 'q') {
      torn.insert(prefix);
    } else {
      damaged[prefix] = row;
    }
    return absl::OkStatus();
  };
  RP_RETURN_IF_ERROR(index->Scan("k", look));
  RP_RETURN_IF_ERROR(index->Scan("q", look));
  std::unique_ptr<IndexBatch> batch = index->NewBatch();
  for (const std::string& prefix : torn) {
    RP_RETURN_IF_ERROR(
        index->Scan(prefix, [&](absl::string_view key, absl::string_view) {
          batch->Delete(key);
          return absl::OkStatus();
        }));
    ++report->dangling_payloads;
    if (prefix[0] == 'q') continue;
    std::string payload = prefix;
    payload[0] = 'p';
    batch->Delete(payload);
  }
  for (const auto& [prefix, row] : damaged) {
    std::string payload = prefix;
    payload[0] = 'p';
    if (torn.count(prefix) > 0) continue;
    RP_ASSIGN_OR_RETURN(std::optional<v1::PayloadRow> marked,
                        GetRow<v1::PayloadRow>(index, payload));
    if (!marked.has_value()) continue;
    marked->set_damaged(true);
    marked->set_damaged_segment(row.segment());
    marked->set_damaged_offset_bytes(row.offset_bytes());
    batch->Put(payload, marked->SerializeAsString());
    ++report->damaged_payloads;
  }
  if (torn.empty() && damaged.empty()) return absl::OkStatus();
  return index->Write(std::move(batch), /*sync=*/true);
}

uint64_t SyncCountBeside(const std::string& data_dir, FileSystem* file_system) {
  constexpr uint64_t kMaxDigits = 20;
  uint64_t count = 0;
  const auto text =
      ReadWholeFile(file_system, data_dir + "/synced", kMaxDigits);
  return text.ok() && absl::SimpleAtoi(*text, &count) ? count : 0;
}

absl::StatusOr<std::set<uint64_t>> NamedSegments(Index* index) {
  std::set<uint64_t> named;
  RP_RETURN_IF_ERROR(
      index->Scan("g", [&](absl::string_view key, absl::string_view) {
        if (const auto segment = keys::ParseSegment(key); segment.has_value())
          named.insert(*segment);
        return absl::OkStatus();
      }));
  return named;
}

absl::StatusOr<std::set<uint64_t>> NameSegments(Index* index,
                                                PayloadStore* segments,
                                                bool may_have_begun) {
  RP_ASSIGN_OR_RETURN(std::set<uint64_t> named, NamedSegments(index));
  std::unique_ptr<IndexBatch> batch = index->NewBatch();
  for (const PayloadStore::SegmentInfo& segment : segments->Segments()) {
    // The last process began this segment and died before it named it.
    const bool begun_last =
        may_have_begun && segment.number > segments->recovery().trusted.segment;
    if (begun_last && named.insert(segment.number).second)
      batch->Put(keys::Segment(segment.number), "");
  }
  RP_RETURN_IF_ERROR(index->Write(std::move(batch), /*sync=*/false));
  return named;
}

absl::StatusOr<bool> CheckFormat(Index* index) {
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> version,
                      index->Get(keys::kSchema));
  if (!version.has_value()) {
    RP_RETURN_IF_ERROR(
        PutRow(index, keys::kSchema, kFormatVersion, /*sync=*/true));
    return true;
  }
  if (*version == kFormatVersion) return false;
  return absl::FailedPreconditionError(
      absl::StrCat("the archive has format version ", VisibleText(*version),
                   ", and this rankprobed reads version ", kFormatVersion));
}

void NoteSyncCountBeside(const std::string& data_dir, FileSystem* file_system,
                         uint64_t count) {
  auto file = file_system->OpenForWrite(data_dir + "/synced",
                                        FileSystem::OpenMode::kTruncate);
  if (!file.ok()) return;
  (*file)->Append(absl::StrCat(count)).IgnoreError();
  (*file)->Close().IgnoreError();
}

}  // namespace rankprobe
