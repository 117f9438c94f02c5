// SPDX-License-Identifier: Apache-2.0
// Payloads in one sealed object, each in frames of 1 MiB of its bytes, however
// they arrived.
// Not thread-safe, except ReadSealedPayload. Failure: DATA_LOSS for damage.
#ifndef RANKPROBE_COLLECTOR_SEALED_PACK_OBJECT_H_
#define RANKPROBE_COLLECTOR_SEALED_PACK_OBJECT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/read_ahead.h"
#include "collector/sealed/sealed_object.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe {

class PackObjectWriter {
 public:
  static absl::StatusOr<std::unique_ptr<PackObjectWriter>> Create(
      FileSystem* file_system, const std::string& path);
  // Sets what makes the object's name differ from any of another collector
  // (SealedRecordsIndex.origin).
  void SetOrigin(const std::string& origin) { index_.set_origin(origin); }

  // `content_digest` is that of the bytes; equal to `digest` unless that
  // includes the principal.
  void BeginPayload(absl::string_view digest, uint64_t length_bytes,
                    absl::string_view content_digest);
  absl::Status AddData(absl::string_view data);
  // Returns false if it did not get as many bytes as declared; the payload is
  // then not in the pack, as after AbandonPayload.
  absl::StatusOr<bool> EndPayload();
  void AbandonPayload();

  uint64_t bytes() const { return object_->bytes() + raw_.size(); }
  int payloads() const { return index_.payloads_size(); }
  absl::StatusOr<v1::SealedObject> Finish();

 private:
  explicit PackObjectWriter(std::unique_ptr<SealedObjectWriter> object)
      : object_(std::move(object)) {}
  absl::Status EndFrame();

  const std::unique_ptr<SealedObjectWriter> object_;
  v1::SealedPackIndex index_;
  v1::SealedPayload payload_;
  uint64_t seen_bytes_ = 0, payload_bytes_ = 0;
  std::string raw_;
};

// Reads and checks the index of a pack: frames lie within it and are as long as
// their payloads.
absl::StatusOr<v1::SealedPackIndex> ReadPackIndex(ObjectStore* store,
                                                  const std::string& key,
                                                  uint64_t object_bytes);

// Reads a payload of a pack that is `object_bytes` long. Small payloads that
// are read in their order share requests.
absl::Status ReadSealedPayload(
    ReadAhead* packs, const std::string& key, uint64_t object_bytes,
    const v1::SealedPayload& payload,
    const std::function<absl::Status(absl::string_view)>& callback);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_PACK_OBJECT_H_
