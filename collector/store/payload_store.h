// SPDX-License-Identifier: Apache-2.0
// Append-only segment files that hold payload chunks. Another payload store can
// be substituted here.
//
//   segments/0000000001.seg: frames, back to back
//   frame: "RPS1" | data length u32 | run u32 | digest 16
//          | payload length u64 | offset u64 | data crc32c u32
//          | header crc32c u32 | data            (little-endian)
//
// A new segment is begun at each open and when one would grow too large.
// Damage: bytes that fail their checksum spoil the chunk they belong to, never
// its neighbours; a file is never truncated where the index may point.
// Threads: Append is called by one thread at a time; the rest by any. A Sync
// does not block Append.
// Failure: a failed Append leaves nothing behind (the file is truncated); if
// even that fails, or a Sync does, the store is broken and returns that error
// from then on.
#ifndef RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_

#include <cstdint>
#include <deque>
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
    // Stores chunks compressed that zstd makes at least a tenth smaller.
    bool compress = false;
    // This many synced bytes stay in the system's cache, for the export of a
    // step that has just ended; the cache of older ones is released for new
    // data.
    uint64_t cached_bytes = uint64_t{256} << 20;
  };
  // Sizes by segment number.
  using Sizes = std::map<uint64_t, uint64_t>;
  // A position in the sequence of all segments.
  struct Place {
    uint64_t segment = 0;
    uint64_t offset = 0;
  };
  // State of the segments according to the index, when they are opened.
  struct Known {
    // The last process closed the segments: nothing is checked or truncated.
    bool clean = false;
    // Everything before this place is on the disk. Segment 0 means that it is
    // not known; then all segments except the newest are taken as synced.
    Place synced;
    // The highest end of a chunk that the index names, by segment.
    Sizes named_ends;
  };
  struct Recovery {
    uint64_t torn_bytes_dropped = 0;
    uint64_t segments = 0;
    // Data before this place is never torn: a fault there is damage.
    Place trusted;
  };

  // Opens the directory. Behind the last synced place, and behind all that the
  // index names, anything that is not a sequence of complete frames is torn and
  // truncated. INVALID_ARGUMENT if a segment is not a regular file.
  static absl::StatusOr<std::unique_ptr<PayloadStore>> Open(
      const Options& options, FileSystem* file_system, const Known& known);
  static absl::StatusOr<std::unique_ptr<PayloadStore>> Open(
      const Options& options, FileSystem* file_system) {
    return Open(options, file_system, Known());
  }
  // Returns the numbers and sizes of the segment files in a directory.
  static absl::StatusOr<Sizes> ListSegments(const std::string& directory,
                                            FileSystem* file_system);

  const Recovery& recovery() const { return recovery_; }

  // Writes all chunks and returns their rows in the same order. On return the
  // chunks survive a crash of the process, not of the machine.
  absl::StatusOr<std::vector<v1::ChunkRow>> Append(
      absl::Span<const ChunkToAppend> chunks);

  // Closes this segment for appending: if it is the newest, begins the next
  // one, empty. Called by the writer. RESOURCE_EXHAUSTED if the disk has no
  // space for it.
  absl::Status EndSegment(uint64_t segment);

  // Makes what was appended before the call survive a crash of the machine.
  absl::Status Sync();
  // Returns the place before which everything has been synced.
  Place synced() {
    absl::MutexLock lock(&mutex_);
    return synced_;
  }

  // Returns the size of the chunk in its segment.
  static uint64_t StoredBytes(const v1::ChunkRow& row) {
    return row.compressed_bytes() > 0 ? row.compressed_bytes()
                                      : row.length_bytes();
  }

  // Reads the chunk's bytes and checks them against its CRC (DATA_LOSS).
  absl::Status Read(const v1::ChunkRow& row, std::string* out);
  // Checks that the header before the chunk's bytes matches what was appended
  // (DATA_LOSS). Reading does not need it, but a rebuild of the index does.
  absl::Status CheckHeader(const v1::ChunkRow& row, const ChunkToAppend& chunk);

  // Returns whether a crash of the machine may have torn the chunk: it was
  // behind the synced place when the store was opened.
  bool MayBeTorn(const v1::ChunkRow& row) const {
    const Place& trusted = recovery_.trusted;
    return row.segment() > trusted.segment ||
           (row.segment() == trusted.segment &&
            row.offset_bytes() + StoredBytes(row) > trusted.offset);
  }

  struct SegmentInfo {
    uint64_t number = 0;
    uint64_t size_bytes = 0;
    // True once nothing more is appended to it.
    bool closed = false;
  };
  std::vector<SegmentInfo> Segments();
  // Returns the size of all segments.
  uint64_t TotalBytes();
  std::string SegmentPath(uint64_t segment) const;
  // Returns a text for display, such as "segments/0000000001.seg at byte 52".
  static std::string PlaceText(uint64_t segment, uint64_t offset);
  // Deletes a closed segment that no row points into.
  absl::Status Remove(uint64_t segment);

  // Returns true if the row lies inside an existing segment.
  bool Contains(const v1::ChunkRow& row);

 private:
  PayloadStore(const Options& options, FileSystem* file_system)
      : options_(options), file_system_(file_system) {}

  absl::Status Recover(const Known& known);
  // Returns the end of the sequence of complete frames that begins at `from`.
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
    // Free space does not repair an unknown state, so the error must not be one
    // that callers retry.
    broken_ = absl::IsResourceExhausted(status)
                  ? absl::DataLossError(status.message())
                  : status;
  }

  // Part of a segment; keeps its file open.
  struct Part {
    uint64_t segment;
    std::shared_ptr<WritableFile> file;
    uint64_t begin, end;
  };
  // Leaves the sync of the file up to `end` to the next Sync.
  void LeaveToSync(uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records that the part is synced and cached; returns the parts whose cache
  // is to be released instead.
  std::vector<Part> NoteCached(Part part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Writer side: one thread at a time.
  ChunkPacker packer_;
  uint64_t segment_ = 0;
  uint64_t size_ = 0;

  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  // The newest segment, set by the writer; a Sync may keep an older one open
  // for a moment.
  std::shared_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);
  // Older segments that the next Sync has to sync.
  std::vector<Part> unsynced_ ABSL_GUARDED_BY(mutex_);
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest synced bytes, oldest first. Only of existing segments, because
  // an open file keeps its disk space.
  std::deque<Part> cached_ ABSL_GUARDED_BY(mutex_);
  uint64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Everything before this place has been in cached_.
  Place counted_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // Sizes of all segments; readers must not read beyond them.
  Sizes sizes_ ABSL_GUARDED_BY(mutex_);
  Place synced_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<RandomAccessFile>> readers_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_
