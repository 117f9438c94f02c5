// SPDX-License-Identifier: Apache-2.0
// Append-only segment files that hold payload chunks. The seam to another
// payload store.
//
//   segments/0000000001.seg: frames, back to back
//   frame: "RPS1" | data length u32 | run u32 | digest 16
//          | payload length u64 | offset u64 | data crc32c u32
//          | header crc32c u32 | data            (little-endian)
//
// A new segment is begun at each open and when one would grow too large.
// Damage: bytes that fail their checksum spoil the chunk they belong to, never
// its neighbours; a file is not cut where something may point to.
// Threads: Append is called by one thread at a time; the rest by any. A Sync
// does not hold up Append.
// Failure: a failed Append leaves nothing behind (the file is cut back); if
// even that fails, or a Sync does, the store is broken and says so from then
// on.
#ifndef RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "collector/store/chunk_packer.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

struct ChunkToAppend {
  uint32_t run = 0;
  absl::string_view digest;  // 16 bytes
  uint64_t payload_length = 0;
  uint64_t offset = 0;
  absl::string_view data;
  uint32_t crc32c = 0;
};

class PayloadStore {
 public:
  struct Options {
    std::string directory;
    uint64_t segment_bytes = 0;
    // Chunks that zstd makes at least a tenth smaller are kept so.
    bool compress = false;
    // Of what is synced so much stays in the system's cache, for the export of a
    // step that has just ended; the memory of the rest is for what comes.
    uint64_t cached_bytes = uint64_t{256} << 20;
  };
  // By number of the segment.
  using Sizes = std::map<uint64_t, uint64_t>;
  // A place in the row of all segments.
  struct Place {
    uint64_t segment = 0;
    uint64_t offset = 0;
  };
  // What the index knows of the segments when they are opened.
  struct Known {
    // The last process closed them: nothing is looked at and nothing is cut.
    bool clean = false;
    // What lies before is on the disk, come what may. Segment 0: not known,
    // then all segments but the newest are.
    Place synced;
    // The highest end of a chunk that the index names, by segment.
    Sizes named_ends;
  };
  struct Recovery {
    uint64_t torn_bytes_dropped = 0;
    uint64_t segments = 0;
    // What lies before this place is never torn: a fault there is damage.
    Place trusted;
  };

  // Opens the directory. Behind the place that was synced last, and behind all
  // that the index names, what is not a row of whole frames is torn and cut off.
  // INVALID_ARGUMENT: a segment is not a regular file.
  static absl::StatusOr<std::unique_ptr<PayloadStore>> Open(
      const Options& options, FileSystem* file_system, const Known& known);
  static absl::StatusOr<std::unique_ptr<PayloadStore>> Open(
      const Options& options, FileSystem* file_system) {
    return Open(options, file_system, Known());
  }
  // Numbers of the segment files of a directory and their sizes.
  static absl::StatusOr<Sizes> ListSegments(const std::string& directory,
                                            FileSystem* file_system);

  const Recovery& recovery() const { return recovery_; }

  // Writes all chunks; rows come back in their order. Survives a crash of the
  // process on return, not of the machine.
  absl::StatusOr<std::vector<v1::ChunkRow>> Append(
      absl::Span<const ChunkToAppend> chunks);

  // Nothing is appended to this segment any more: if it is the newest, the next one
  // is begun, empty. The writer's. RESOURCE_EXHAUSTED: there is no room for that.
  absl::Status EndSegment(uint64_t segment);

  // What was appended before the call survives a crash of the machine.
  absl::Status Sync();
  // All that lies before it has been synced.
  Place synced() {
    absl::MutexLock lock(&mutex_);
    return synced_;
  }

  // Bytes of the chunk in its segment.
  static uint64_t StoredBytes(const v1::ChunkRow& row) {
    return row.compressed_bytes() > 0 ? row.compressed_bytes()
                                      : row.length_bytes();
  }

  // The chunk's bytes, checked against its CRC (DATA_LOSS).
  absl::Status Read(const v1::ChunkRow& row, std::string* out);
  // Whether the header before the chunk's bytes says what was appended there
  // (DATA_LOSS). Reading does not need it, rebuilding an index does.
  absl::Status CheckHeader(const v1::ChunkRow& row, const ChunkToAppend& chunk);

  // A crash of the machine may have torn the chunk: it lay behind what was
  // synced when the store was opened.
  bool MayBeTorn(const v1::ChunkRow& row) const {
    const Place& trusted = recovery_.trusted;
    return row.segment() > trusted.segment ||
           (row.segment() == trusted.segment &&
            row.offset_bytes() + StoredBytes(row) > trusted.offset);
  }

  struct SegmentInfo {
    uint64_t number = 0;
    uint64_t size_bytes = 0;
    // Nothing is appended to it any more.
    bool closed = false;
  };
  std::vector<SegmentInfo> Segments();
  // Of all segments.
  uint64_t TotalBytes();
  std::string SegmentPath(uint64_t segment) const;
  // "segments/0000000001.seg at byte 52", for people.
  static std::string PlaceText(uint64_t segment, uint64_t offset);
  // Deletes a closed segment that no row points into.
  absl::Status Remove(uint64_t segment);

  // True if the row lies inside an existing segment.
  bool Contains(const v1::ChunkRow& row);

 private:
  PayloadStore(const Options& options, FileSystem* file_system)
      : options_(options), file_system_(file_system) {}

  absl::Status Recover(const Known& known);
  // The end of the row of whole frames that begins at `from`.
  absl::StatusOr<uint64_t> ValidEnd(const std::string& path, uint64_t from,
                                    uint64_t size);
  absl::Status NextSegment();
  absl::StatusOr<std::shared_ptr<RandomAccessFile>> Reader(uint64_t segment);

  const Options options_;
  FileSystem* const file_system_;
  Recovery recovery_;

  absl::Status Broken() {
    absl::MutexLock lock(&mutex_);
    return broken_;
  }
  void Break(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    // More room does not mend what is unknown: never a reason to try again.
    broken_ = absl::IsResourceExhausted(status)
                  ? absl::DataLossError(status.message())
                  : status;
  }

  // Part of a segment, of which it keeps the file.
  struct Part {
    uint64_t segment;
    std::shared_ptr<WritableFile> file;
    uint64_t begin, end;
  };
  // The file as far as it has been written is a Sync's business.
  void LeaveToSync(uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Synced, and in the system's cache; what is to go from there, in exchange.
  std::vector<Part> NoteCached(Part part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Writer side: one thread at a time.
  ChunkPacker packer_;
  uint64_t segment_ = 0;
  uint64_t size_ = 0;

  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  // The newest segment; a Sync may hold on to an older one for a moment. Set
  // by the writer.
  std::shared_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);
  // Older segments that a Sync has yet to see.
  std::vector<Part> unsynced_ ABSL_GUARDED_BY(mutex_);
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest bytes that were synced, oldest first, of segments that are there: a
  // file that is kept open keeps its room on the disk.
  std::deque<Part> cached_ ABSL_GUARDED_BY(mutex_);
  uint64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // All before it has been in cached_.
  Place counted_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // Sizes of all segments; readers may not look beyond them.
  Sizes sizes_ ABSL_GUARDED_BY(mutex_);
  Place synced_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<RandomAccessFile>> readers_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_
