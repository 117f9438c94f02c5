// SPDX-License-Identifier: Apache-2.0
// The frame of every sealed object (docs/storage.md, "Sealed archive"):
//
//   magic 8 | frames, back to back | index | trailer 28
//   trailer: index bytes u64 | object bytes u64 | index crc32c u32 | magic 8
//
// The trailer comes last and contains the object's length, so that a truncated
// object is detected. The same calls make the same bytes.
// Ownership: the file system outlives a writer. Not thread-safe. Failure: the
// file system's; DATA_LOSS for bytes that are not such an object.
#ifndef RANKPROBE_COLLECTOR_SEALED_SEALED_OBJECT_H_
#define RANKPROBE_COLLECTOR_SEALED_SEALED_OBJECT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/object_store/object_store.h"
#include "common/io/content_hash.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe {

enum class SealedKind { kRecords, kPack };

// Uncompressed size of one frame.
inline constexpr uint64_t kSealedFrameBytes = 1 << 20;
inline constexpr uint64_t kMaxSealedIndexBytes = uint64_t{256} << 20;

// Writes one object to a file.
class SealedObjectWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SealedObjectWriter>> Create(
      SealedKind kind, FileSystem* file_system, const std::string& path);
  ~SealedObjectWriter();

  // Adds a frame, compressed if that makes it at least a tenth smaller. `raw`
  // has at most 2 * kSealedFrameBytes.
  absl::StatusOr<v1::SealedFrame> AddFrame(absl::string_view raw);
  // Returns where the next frame begins.
  uint64_t bytes() const { return bytes_; }
  // Syncs the file and returns the object's name and size.
  absl::StatusOr<v1::SealedObject> Finish(absl::string_view index);

 private:
  SealedObjectWriter(SealedKind kind, std::unique_ptr<WritableFile> file);
  absl::Status Append(absl::string_view bytes);

  const SealedKind kind_;
  std::unique_ptr<WritableFile> file_;
  uint64_t bytes_ = 0;
  PayloadHash hash_;
  struct Compressor;
  std::unique_ptr<Compressor> compressor_;
};

// Reads and checks the index of an object: it is complete, and of this kind and
// size.
absl::StatusOr<std::string> ReadSealedIndex(ObjectStore* store,
                                            const std::string& key,
                                            SealedKind kind,
                                            uint64_t object_bytes);

// Returns the bytes of a frame; `stored` is as long as the frame declares.
absl::StatusOr<std::string> DecodeSealedFrame(const v1::SealedFrame& frame,
                                              absl::string_view stored);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_SEALED_OBJECT_H_
