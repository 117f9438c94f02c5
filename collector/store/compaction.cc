// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "collector/store/keys.h"
#include "collector/store/maintenance.h"
#include "collector/store/recovery.h"
#include "collector/store/rows.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

// Bytes copied before the commit path gets the lock again.
constexpr uint64_t kCopyBytes = 4 << 20;
// Segments with a larger live share are not rewritten to reach a target.
constexpr double kMostLiveShare = 0.9;

struct LiveChunk {
  std::string key;
  v1::ChunkRow row;
  std::string data;
};

using RowFn = std::function<void(absl::string_view, const v1::ChunkRow&)>;

// Calls `fn` for the rows of all chunks, including those of unfinished
// payloads.
absl::Status ForEachChunk(Index* index, const RowFn& fn) {
  for (const char* const table : {"k", "q"}) {
    RP_RETURN_IF_ERROR(index->Scan(
        table,
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          v1::ChunkRow row;
          if (!ParseRow(value, &row))
            return absl::DataLossError("the row of a chunk cannot be read");
          fn(key, row);
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

// Reads the chunks. Damaged ones are not moved, and neither are their segments.
absl::Status ReadChunks(StoreCore* core, std::vector<LiveChunk>* chunks,
                        std::set<uint64_t>* victims) {
  std::vector<LiveChunk> sound;
  for (LiveChunk& chunk : *chunks) {
    const absl::Status read = core->segments->Read(chunk.row, &chunk.data);
    if (read.ok()) {
      sound.push_back(std::move(chunk));
      continue;
    }
    if (!absl::IsDataLoss(read)) return read;
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> now,
                        core->index->Get(chunk.key));
    if (now != chunk.row.SerializeAsString()) continue;
    victims->erase(chunk.row.segment());
    // A damaged unfinished payload is dropped when its sender continues.
    if (chunk.key[0] != 'k') continue;
    std::string payload = chunk.key.substr(0, chunk.key.size() - 8);
    payload[0] = 'p';
    core->MarkDamaged(payload, chunk.row);
  }
  *chunks = std::move(sound);
  return absl::OkStatus();
}

// Handles the result of a sync that ran without the store's lock, so that
// ingest and offers continue meanwhile. A failure ends the store's writing, as
// it does under the lock.
absl::Status WithoutLock(StoreCore* core, const absl::Status& synced) {
  if (synced.ok()) return synced;
  return core->Exclusive([&] { return synced; });
}

// Copies chunks to the newest segment and points the index at the copies.
absl::Status MoveChunks(StoreCore* core, const std::vector<LiveChunk>& chunks,
                        GarbageReport* result) {
  std::vector<ChunkToAppend> appends(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::optional<keys::PayloadParts> payload =
        keys::ParsePayload(chunks[i].key);
    const std::optional<uint64_t> offset =
        keys::ParseChunkOffset(chunks[i].key);
    if (!payload.has_value() || !offset.has_value())
      return absl::DataLossError("a chunk has a damaged key");
    appends[i].run = payload->run;
    appends[i].digest = absl::string_view(chunks[i].key).substr(5, 16);
    appends[i].payload_length = payload->length;
    appends[i].offset = *offset;
    appends[i].data = chunks[i].data;
    // The CRC of the bytes themselves: the row of a compressed chunk has that
    // of its frame.
    appends[i].crc32c = Crc32c(chunks[i].data);
    result->bytes_copied += chunks[i].data.size();
  }
  std::vector<v1::ChunkRow> rows;
  RP_RETURN_IF_ERROR(core->Exclusive([&]() -> absl::Status {
    RP_ASSIGN_OR_RETURN(rows, core->segments->Append(appends));
    return absl::OkStatus();
  }));
  // The copies must be synced before the originals may be deleted. After a
  // crash here they are bytes that no row names, which a later compaction
  // frees.
  RP_RETURN_IF_ERROR(WithoutLock(core, core->segments->Sync()));
  return core->Exclusive([&]() -> absl::Status {
    std::unique_ptr<IndexBatch> batch = core->index->NewBatch();
    for (size_t i = 0; i < chunks.size(); ++i) {
      batch->Put(keys::Segment(rows[i].segment()), "");
      const std::string before = chunks[i].row.SerializeAsString();
      std::string key = chunks[i].key;
      RP_ASSIGN_OR_RETURN(std::optional<std::string> now,
                          core->index->Get(key));
      if (now != before && key[0] == 'q') {
        // The payload was finished meanwhile, so its row moved to table k.
        key = keys::ChunkOfPartial(key);
        RP_ASSIGN_OR_RETURN(now, core->index->Get(key));
      }
      // The payload was deleted meanwhile, so the copy is unused.
      if (now != before) continue;
      batch->Put(key, rows[i].SerializeAsString());
    }
    return core->index->Write(std::move(batch), /*sync=*/false);
  });
}

using Segments = std::vector<PayloadStore::SegmentInfo>;

std::set<uint64_t> Victims(const Segments& segments,
                           std::map<uint64_t, uint64_t>* live,
                           const std::set<uint64_t>& named, double live_share,
                           uint64_t target_bytes, GarbageReport* result) {
  std::set<uint64_t> victims;
  // Sorted by the bytes that a rewrite would return.
  std::vector<std::pair<double, PayloadStore::SegmentInfo>> more;
  uint64_t left = 0;
  for (const PayloadStore::SegmentInfo& segment : segments) {
    result->total_bytes += segment.size_bytes;
    left += segment.size_bytes;
    if (!segment.closed) continue;
    const uint64_t bytes = (*live)[segment.number];
    if (bytes == 0 && segment.size_bytes > 0 &&
        named.count(segment.number) == 0) {
      ++result->unknown_segments;
      continue;
    }
    const double share = segment.size_bytes == 0
                             ? 0
                             : static_cast<double>(bytes) /
                                   static_cast<double>(segment.size_bytes);
    if (share < live_share) {
      victims.insert(segment.number);
      left -= segment.size_bytes - std::min(bytes, segment.size_bytes);
    } else if (share < kMostLiveShare) {
      more.emplace_back(share, segment);
    }
  }
  if (target_bytes == 0) return victims;
  std::sort(more.begin(), more.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [share, segment] : more) {
    if (left <= target_bytes) break;
    victims.insert(segment.number);
    left -= segment.size_bytes -
            std::min((*live)[segment.number], segment.size_bytes);
  }
  return victims;
}

}  // namespace

absl::StatusOr<GarbageReport> CompactSegments(StoreCore* core,
                                              uint64_t target_bytes) {
  GarbageReport result;
  Segments segments;
  std::map<uint64_t, uint64_t> live;
  const auto look = [&]() -> absl::Status {
    // Listed before the rows are read: later segments are not touched.
    segments = core->segments->Segments();
    live.clear();
    result.live_bytes = 0;
    return ForEachChunk(core->index.get(),
                        [&](absl::string_view, const v1::ChunkRow& row) {
                          live[row.segment()] += PayloadStore::StoredBytes(row);
                          result.live_bytes += PayloadStore::StoredBytes(row);
                        });
  };
  RP_RETURN_IF_ERROR(look());
  // The newest segment is ended if it is completely dead. Otherwise its space
  // would return only when others are written, which never happens if it has
  // filled the disk.
  if (!segments.empty() && segments.back().size_bytes > 0 &&
      live.count(segments.back().number) == 0) {
    const absl::Status ended = core->Exclusive(
        [&] { return core->segments->EndSegment(segments.back().number); });
    if (!absl::IsResourceExhausted(ended)) RP_RETURN_IF_ERROR(ended);
    // A chunk may have been appended to it meanwhile.
    RP_RETURN_IF_ERROR(look());
  }
  RP_ASSIGN_OR_RETURN(const std::set<uint64_t> named,
                      NamedSegments(core->index.get()));
  std::set<uint64_t> victims =
      Victims(segments, &live, named, core->options.min_live_share,
              target_bytes, &result);
  if (victims.empty()) return result;
  // No row can come to point into a victim meanwhile, because nothing is
  // appended to a closed segment.
  std::vector<LiveChunk> chunks;
  RP_RETURN_IF_ERROR(ForEachChunk(
      core->index.get(), [&](absl::string_view key, const v1::ChunkRow& row) {
        if (victims.count(row.segment()) > 0)
          chunks.push_back({std::string(key), row, ""});
      }));
  for (size_t next = 0; next < chunks.size();) {
    std::vector<LiveChunk> some;
    uint64_t bytes = 0;
    while (next < chunks.size() && (some.empty() || bytes < kCopyBytes)) {
      bytes += chunks[next].row.length_bytes();
      some.push_back(std::move(chunks[next++]));
    }
    RP_RETURN_IF_ERROR(ReadChunks(core, &some, &victims));
    if (!some.empty()) RP_RETURN_IF_ERROR(MoveChunks(core, some, &result));
  }
  // One sync covers all moved and deleted rows; the files may be removed only
  // after it.
  RP_RETURN_IF_ERROR(WithoutLock(
      core, core->index->Write(core->index->NewBatch(), /*sync=*/true)));
  // Segments that a row still names are kept, whatever was computed above.
  if (!chunks.empty()) {
    RP_RETURN_IF_ERROR(ForEachChunk(
        core->index.get(), [&](absl::string_view, const v1::ChunkRow& row) {
          victims.erase(row.segment());
        }));
  }
  std::unique_ptr<IndexBatch> batch = core->index->NewBatch();
  for (const PayloadStore::SegmentInfo& segment : segments) {
    if (victims.count(segment.number) == 0) continue;
    RP_RETURN_IF_ERROR(core->segments->Remove(segment.number));
    batch->Delete(keys::Segment(segment.number));
    ++result.segments_removed;
    result.bytes_removed += segment.size_bytes;
  }
  RP_RETURN_IF_ERROR(core->index->Write(std::move(batch), /*sync=*/false));
  return result;
}

}  // namespace rankprobe
