// Append-only segment files that hold payload chunks. The seam to another
// payload store.
//
//   segments/0000000001.seg: frames, back to back
//   frame: "RPS1" | data length u32 | run u32 | digest 16 | payload length u64
//   |
//          offset u64 | data crc32c u32 | header crc32c u32 | data
//          (little-endian)
//
// A new segment is begun at each open and when one would grow too large.
// Threads: Append is called by one thread at a time; the rest by any. A Sync
// does not hold up Append.
// Failure: a failed Append leaves nothing behind (the file is cut back); if
// even that fails, or a Sync does, the store is broken and says so from then
// on.
#ifndef RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_

#include <cstdint>
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
#include "common/file_system.h"
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
  };
  struct Recovery {
    uint64_t torn_bytes_dropped = 0;
    uint64_t segments = 0;
  };

  // Opens the directory; cuts a torn frame off the newest segment.
  static absl::StatusOr<std::unique_ptr<PayloadStore>> Open(
      const Options& options, FileSystem* file_system);

  const Recovery& recovery() const { return recovery_; }

  // Writes all chunks; rows come back in their order. Survives a crash of the
  // process on return, not of the machine.
  absl::StatusOr<std::vector<v1::ChunkRow>> Append(
      absl::Span<const ChunkToAppend> chunks);

  // What was appended before the call survives a crash of the machine.
  absl::Status Sync();

  // Bytes of the chunk in its segment.
  static uint64_t StoredBytes(const v1::ChunkRow& row) {
    return row.compressed_bytes() > 0 ? row.compressed_bytes()
                                      : row.length_bytes();
  }

  // The chunk's bytes, checked against its CRC (DATA_LOSS).
  absl::Status Read(const v1::ChunkRow& row, std::string* out);

  struct SegmentInfo {
    uint64_t number = 0;
    uint64_t size_bytes = 0;
    // Nothing is appended to it any more.
    bool closed = false;
  };
  std::vector<SegmentInfo> Segments();
  std::string SegmentPath(uint64_t segment) const;
  // Deletes a closed segment that no row points into.
  absl::Status Remove(uint64_t segment);

  // True if the row lies inside an existing segment.
  bool Contains(const v1::ChunkRow& row);

 private:
  PayloadStore(const Options& options, FileSystem* file_system)
      : options_(options), file_system_(file_system) {}

  absl::Status Recover();
  absl::StatusOr<uint64_t> ValidBytes(const std::string& path, uint64_t size);
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
  std::vector<std::shared_ptr<WritableFile>> unsynced_ ABSL_GUARDED_BY(mutex_);
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // Sizes of all segments; readers may not look beyond them.
  std::map<uint64_t, uint64_t> sizes_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<RandomAccessFile>> readers_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PAYLOAD_STORE_H_
