// SPDX-License-Identifier: Apache-2.0
#include "collector/store/payload_store.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collector/store/segment_header.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

constexpr char kSuffix[] = ".seg";
constexpr size_t kMaxOpenReaders = 64;
// Files with a higher number were not made by this store.
constexpr uint64_t kMaxSegment = uint64_t{1} << 48;

SegmentHeader HeaderOf(const ChunkToAppend& chunk, uint64_t stored_bytes,
                       uint32_t crc32c) {
  return {.stored_bytes = static_cast<uint32_t>(stored_bytes),
          .run = chunk.run,
          .digest = chunk.digest,
          .payload_length = chunk.payload_length,
          .offset = chunk.offset,
          .crc32c = crc32c};
}

std::string FileName(uint64_t segment) {
  return absl::StrCat(absl::StrFormat("%010d", segment), kSuffix);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PayloadStore>> PayloadStore::Open(
    const Options& options, FileSystem* file_system, const Known& known) {
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(options.directory));
  std::unique_ptr<PayloadStore> store(new PayloadStore(options, file_system));
  RP_RETURN_IF_ERROR(store->Recover(known));
  return store;
}

std::string PayloadStore::SegmentPath(uint64_t segment) const {
  return absl::StrCat(options_.directory, "/", FileName(segment));
}

std::string PayloadStore::PlaceText(uint64_t segment, uint64_t offset) {
  return absl::StrCat("segments/", FileName(segment), " at byte ", offset);
}

absl::StatusOr<PayloadStore::Sizes> PayloadStore::ListSegments(
    const std::string& directory, FileSystem* file_system) {
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system->List(directory));
  Sizes sizes;
  for (const std::string& name : names) {
    uint64_t number = 0;
    if (!absl::EndsWith(name, kSuffix) ||
        !absl::SimpleAtoi(name.substr(0, name.size() - 4), &number) ||
        number > kMaxSegment || name != FileName(number))
      continue;
    RP_ASSIGN_OR_RETURN(sizes[number], file_system->FileSize(
                                           absl::StrCat(directory, "/", name)));
  }
  return sizes;
}

absl::Status PayloadStore::Recover(const Known& known) {
  RP_ASSIGN_OR_RETURN(Sizes sizes,
                      ListSegments(options_.directory, file_system_));
  recovery_.segments = sizes.size();
  absl::MutexLock lock(&mutex_);
  // The number of a deleted segment is not reused either.
  segment_ = known.synced.segment;
  if (!known.named_ends.empty())
    segment_ = std::max(segment_, known.named_ends.rbegin()->first);
  const Place last = sizes.empty()
                         ? Place()
                         : Place{sizes.rbegin()->first, sizes.rbegin()->second};
  segment_ = std::max(segment_, last.segment);
  Place trusted = known.synced;
  if (known.clean) {
    trusted = last;
  } else if (trusted.segment == 0) {
    // The synced place is not known: only the newest segment may be torn.
    trusted = {last.segment, 0};
  }
  recovery_.trusted = trusted;
  for (auto it = sizes.lower_bound(trusted.segment);
       !known.clean && it != sizes.end(); ++it) {
    const std::string path = SegmentPath(it->first);
    uint64_t& size = it->second;
    const uint64_t from =
        it->first == trusted.segment ? std::min(trusted.offset, size) : 0;
    RP_ASSIGN_OR_RETURN(uint64_t end, ValidEnd(path, from, size));
    const auto named = known.named_ends.find(it->first);
    // Never truncates where the index points: damage there is reported, not
    // removed.
    if (named != known.named_ends.end())
      end = std::max(end, std::min(named->second, size));
    if (end < size) {
      recovery_.torn_bytes_dropped += size - end;
      RP_RETURN_IF_ERROR(file_system_->Truncate(path, end));
      size = end;
    }
    // The process that wrote it may have died before it synced it.
    RP_RETURN_IF_ERROR(file_system_->SyncFile(path));
  }
  if (!sizes.empty()) synced_ = {last.segment, sizes.rbegin()->second};
  sizes_ = std::move(sizes);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> PayloadStore::ValidEnd(const std::string& path,
                                                uint64_t from, uint64_t size) {
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system_->OpenForRead(path));
  uint64_t at = from;
  std::string data;
  while (at + SegmentHeader::kBytes <= size) {
    SegmentHeader::Bytes bytes;
    RP_RETURN_IF_ERROR(file->Read(at, absl::MakeSpan(bytes)));
    const std::optional<SegmentHeader> header =
        SegmentHeader::Decode({bytes.data(), bytes.size()});
    if (!header.has_value()) break;
    if (at + SegmentHeader::kBytes + header->stored_bytes > size) break;
    data.resize(header->stored_bytes);
    RP_RETURN_IF_ERROR(
        file->Read(at + SegmentHeader::kBytes, absl::MakeSpan(data)));
    if (Crc32c(data) != header->crc32c) break;
    at += SegmentHeader::kBytes + header->stored_bytes;
  }
  return at;
}

absl::Status PayloadStore::NextSegment() {
  const uint64_t next = segment_ + 1;
  RP_ASSIGN_OR_RETURN(std::shared_ptr<WritableFile> file,
                      file_system_->OpenForWrite(
                          SegmentPath(next), FileSystem::OpenMode::kCreateNew));
  if (const absl::Status status =
          file_system_->SyncDirectory(options_.directory);
      !status.ok()) {
    // Frees the number for another attempt.
    RP_RETURN_IF_ERROR(file_system_->Delete(SegmentPath(next)));
    return status;
  }
  absl::MutexLock lock(&mutex_);
  LeaveToSync(size_);
  file_ = std::move(file);
  segment_ = next;
  size_ = 0;
  sizes_[segment_] = 0;
  return absl::OkStatus();
}

void PayloadStore::LeaveToSync(uint64_t end) {
  if (file_ != nullptr && dirty_)
    unsynced_.push_back({segment_, std::move(file_), 0, end});
  file_.reset();
  dirty_ = false;
}

absl::Status PayloadStore::EndSegment(uint64_t segment) {
  RP_RETURN_IF_ERROR(Broken());
  return segment == segment_ ? NextSegment() : absl::OkStatus();
}

absl::StatusOr<std::vector<v1::ChunkRow>> PayloadStore::Append(
    absl::Span<const ChunkToAppend> chunks) {
  RP_RETURN_IF_ERROR(Broken());
  std::vector<v1::ChunkRow> rows(chunks.size());
  size_t next = 0;
  while (next < chunks.size()) {
    const auto current = [this] {
      absl::MutexLock lock(&mutex_);
      return file_;
    };
    std::shared_ptr<WritableFile> file = current();
    if (file == nullptr || size_ >= options_.segment_bytes) {
      if (absl::Status status = NextSegment(); !status.ok()) {
        if (!absl::IsResourceExhausted(status)) Break(status);
        return status;
      }
      file = current();
    }
    std::vector<SegmentHeader::Bytes> headers;
    std::vector<absl::string_view> pieces;
    std::deque<std::string> packed;
    headers.reserve(chunks.size() - next);
    uint64_t bytes = 0;
    size_t end = next;
    for (; end < chunks.size() && size_ + bytes < options_.segment_bytes;
         ++end) {
      ChunkToAppend chunk = chunks[end];
      v1::ChunkRow& row = rows[end];
      row.set_length_bytes(chunk.data.size());
      if (options_.compress) {
        if (packer_.Pack(chunk.data, &packed.emplace_back())) {
          chunk.data = packed.back();
          chunk.crc32c = Crc32c(chunk.data);
          row.set_compressed_bytes(chunk.data.size());
        } else {
          packed.pop_back();
        }
      }
      headers.push_back(
          HeaderOf(chunk, chunk.data.size(), chunk.crc32c).Encode());
      pieces.emplace_back(headers.back().data(), SegmentHeader::kBytes);
      pieces.push_back(chunk.data);
      row.set_segment(segment_);
      row.set_offset_bytes(size_ + bytes + SegmentHeader::kBytes);
      row.set_crc32c(chunk.crc32c);
      bytes += SegmentHeader::kBytes + chunk.data.size();
    }
    if (const absl::Status status = file->Append(pieces); !status.ok()) {
      const absl::Status cut =
          file_system_->Truncate(SegmentPath(segment_), size_);
      if (!cut.ok()) {
        Break(cut);
        return Broken();
      }
      // The file's position is unknown: continue at its end, or else in a new
      // segment.
      auto reopened = file_system_->OpenForWrite(SegmentPath(segment_),
                                                 FileSystem::OpenMode::kAppend);
      absl::MutexLock lock(&mutex_);
      LeaveToSync(size_);
      if (reopened.ok()) file_ = *std::move(reopened);
      return status;
    }
    size_ += bytes;
    next = end;
    absl::MutexLock lock(&mutex_);
    dirty_ = true;
    sizes_[segment_] = size_;
  }
  return rows;
}

absl::Status PayloadStore::Sync() {
  // A second caller must not return success before the first sync has ended.
  absl::MutexLock sync_lock(&sync_mutex_);
  std::vector<Part> parts;
  Place end;
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(broken_);
    parts.swap(unsynced_);
    if (!sizes_.empty())
      end = {sizes_.rbegin()->first, sizes_.rbegin()->second};
    if (dirty_) parts.push_back({end.segment, file_, 0, end.offset});
    dirty_ = false;
  }
  for (const Part& part : parts) {
    if (const absl::Status status = part.file->Sync(); !status.ok()) {
      // After a failed fdatasync the state on the disk is unknown.
      Break(status);
      return Broken();
    }
  }
  std::vector<Part> forgotten;
  {
    absl::MutexLock lock(&mutex_);
    synced_ = end;
    for (const Part& part : parts) {
      for (Part& old : NoteCached(part)) forgotten.push_back(std::move(old));
    }
  }
  for (const Part& part : forgotten)
    part.file->ForgetSynced(part.begin, part.end - part.begin);
  return absl::OkStatus();
}

std::vector<PayloadStore::Part> PayloadStore::NoteCached(Part part) {
  if (part.segment == counted_.segment) part.begin = counted_.offset;
  counted_ = {part.segment, std::max(part.begin, part.end)};
  std::vector<Part> forgotten;
  // The segment may have been removed or truncated meanwhile.
  if (part.begin >= part.end || sizes_.count(part.segment) == 0)
    return forgotten;
  cached_bytes_ += part.end - part.begin;
  cached_.push_back(std::move(part));
  while (cached_bytes_ > options_.cached_bytes) {
    Part& oldest = cached_.front();
    Part old = oldest;
    old.end =
        std::min(old.end, old.begin + cached_bytes_ - options_.cached_bytes);
    cached_bytes_ -= old.end - old.begin;
    oldest.begin = old.end;
    if (oldest.begin == oldest.end) cached_.pop_front();
    forgotten.push_back(std::move(old));
  }
  return forgotten;
}

absl::StatusOr<std::shared_ptr<RandomAccessFile>> PayloadStore::Reader(
    uint64_t segment) {
  absl::MutexLock lock(&mutex_);
  const auto it = readers_.find(segment);
  if (it != readers_.end()) return it->second;
  RP_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file,
                      file_system_->OpenForRead(SegmentPath(segment)));
  if (readers_.size() >= kMaxOpenReaders) readers_.erase(readers_.begin());
  std::shared_ptr<RandomAccessFile> shared = std::move(file);
  readers_[segment] = shared;
  return shared;
}

std::vector<PayloadStore::SegmentInfo> PayloadStore::Segments() {
  absl::MutexLock lock(&mutex_);
  std::vector<SegmentInfo> out;
  for (const auto& [number, size] : sizes_) {
    // The newest segment is never closed, so that no number is used twice.
    out.push_back({number, size, number != sizes_.rbegin()->first});
  }
  return out;
}

absl::Status PayloadStore::Remove(uint64_t segment) {
  {
    absl::MutexLock lock(&mutex_);
    if (sizes_.empty() || segment == sizes_.rbegin()->first)
      return absl::FailedPreconditionError("the newest segment stays");
    sizes_.erase(segment);
    // Pending reads keep the file open until they end.
    readers_.erase(segment);
    for (auto it = cached_.begin(); it != cached_.end();) {
      const bool gone = it->segment == segment;
      if (gone) cached_bytes_ -= it->end - it->begin;
      it = gone ? cached_.erase(it) : std::next(it);
    }
  }
  RP_RETURN_IF_ERROR(file_system_->Delete(SegmentPath(segment)));
  return file_system_->SyncDirectory(options_.directory);
}

bool PayloadStore::Contains(const v1::ChunkRow& row) {
  absl::MutexLock lock(&mutex_);
  const auto it = sizes_.find(row.segment());
  const uint64_t bytes = StoredBytes(row);
  return it != sizes_.end() && bytes <= it->second &&
         row.offset_bytes() <= it->second - bytes;
}

uint64_t PayloadStore::TotalBytes() {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const auto& [segment, size] : sizes_) bytes += size;
  return bytes;
}

absl::Status PayloadStore::CheckHeader(const v1::ChunkRow& row,
                                       const ChunkToAppend& chunk) {
  const auto damaged = [&] {
    return absl::DataLossError(absl::StrCat(SegmentPath(row.segment()),
                                            ": the header of the chunk at ",
                                            row.offset_bytes(), " is damaged"));
  };
  if (!Contains(row) || row.offset_bytes() < SegmentHeader::kBytes)
    return damaged();
  RP_ASSIGN_OR_RETURN(const std::shared_ptr<RandomAccessFile> file,
                      Reader(row.segment()));
  SegmentHeader::Bytes bytes;
  RP_RETURN_IF_ERROR(file->Read(row.offset_bytes() - SegmentHeader::kBytes,
                                absl::MakeSpan(bytes)));
  const bool same = SegmentHeader::Decode({bytes.data(), bytes.size()}) ==
                    HeaderOf(chunk, StoredBytes(row), row.crc32c());
  return same ? absl::OkStatus() : damaged();
}

absl::Status PayloadStore::Read(const v1::ChunkRow& row, std::string* out) {
  if (!Contains(row)) {
    return absl::DataLossError(absl::StrCat(
        "segment ", row.segment(), " does not hold bytes ", row.offset_bytes(),
        " to ", row.offset_bytes() + StoredBytes(row)));
  }
  RP_ASSIGN_OR_RETURN(const std::shared_ptr<RandomAccessFile> file,
                      Reader(row.segment()));
  std::string packed;
  std::string* const stored = row.compressed_bytes() > 0 ? &packed : out;
  stored->resize(StoredBytes(row));
  RP_RETURN_IF_ERROR(file->Read(row.offset_bytes(), absl::MakeSpan(*stored)));
  if (Crc32c(*stored) != row.crc32c()) {
    return absl::DataLossError(absl::StrCat(SegmentPath(row.segment()),
                                            ": checksum error in the chunk at ",
                                            row.offset_bytes()));
  }
  if (stored == out) return absl::OkStatus();
  if (!Unpack(packed, row.length_bytes(), out)) {
    return absl::DataLossError(
        absl::StrCat(SegmentPath(row.segment()), ": the chunk at ",
                     row.offset_bytes(), " cannot be decompressed"));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
