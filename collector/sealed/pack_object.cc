// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/pack_object.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/sealed/records_object.h"
#include "common/base/limits.h"
#include "common/base/saturating_add.h"
#include "common/base/status_macros.h"

namespace rankprobe {

absl::StatusOr<std::unique_ptr<PackObjectWriter>> PackObjectWriter::Create(
    FileSystem* file_system, const std::string& path) {
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<SealedObjectWriter> object,
      SealedObjectWriter::Create(SealedKind::kPack, file_system, path));
  return std::unique_ptr<PackObjectWriter>(
      new PackObjectWriter(std::move(object)));
}

void PackObjectWriter::BeginPayload(absl::string_view digest,
                                    uint64_t length_bytes,
                                    absl::string_view content_digest) {
  payload_.Clear();
  payload_.set_digest(std::string(digest));
  if (content_digest != digest)
    payload_.set_content_digest(std::string(content_digest));
  payload_.set_length_bytes(length_bytes);
  payload_.set_offset_bytes(object_->bytes());
  seen_bytes_ = 0;
  raw_.clear();
}

absl::Status PackObjectWriter::EndFrame() {
  if (raw_.empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(*payload_.add_frames(), object_->AddFrame(raw_));
  raw_.clear();
  return absl::OkStatus();
}

absl::Status PackObjectWriter::AddData(absl::string_view data) {
  seen_bytes_ += data.size();
  while (!data.empty()) {
    const absl::string_view piece =
        data.substr(0, kSealedFrameBytes - raw_.size());
    raw_.append(piece.data(), piece.size());
    data.remove_prefix(piece.size());
    if (raw_.size() == kSealedFrameBytes) RP_RETURN_IF_ERROR(EndFrame());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> PackObjectWriter::EndPayload() {
  if (seen_bytes_ != payload_.length_bytes()) {
    AbandonPayload();
    return false;
  }
  RP_RETURN_IF_ERROR(EndFrame());
  payload_bytes_ += seen_bytes_;
  index_.add_payloads()->Swap(&payload_);
  return true;
}

void PackObjectWriter::AbandonPayload() { raw_.clear(); }

absl::StatusOr<v1::SealedObject> PackObjectWriter::Finish() {
  RP_ASSIGN_OR_RETURN(v1::SealedObject object,
                      object_->Finish(index_.SerializeAsString()));
  object.set_payload_bytes(payload_bytes_);
  return object;
}

absl::StatusOr<v1::SealedPackIndex> ReadPackIndex(ObjectStore* store,
                                                  const std::string& key,
                                                  uint64_t object_bytes) {
  RP_ASSIGN_OR_RETURN(
      const std::string bytes,
      ReadSealedIndex(store, key, SealedKind::kPack, object_bytes));
  v1::SealedPackIndex index;
  if (!index.ParseFromString(bytes))
    return absl::DataLossError(absl::StrCat(key, ": its index is none"));
  for (const v1::SealedPayload& payload : index.payloads()) {
    uint64_t length = 0;
    for (const v1::SealedFrame& frame : payload.frames()) {
      length =
          SaturatingAdd(length, frame.raw_bytes() > 0 ? frame.raw_bytes()
                                                      : frame.stored_bytes());
    }
    if (payload.digest().size() != kPayloadDigestBytes ||
        length != payload.length_bytes() ||
        !FramesFit(payload.offset_bytes(), payload.frames(), object_bytes)) {
      return absl::DataLossError(
          absl::StrCat(key, ": a payload does not lie within it"));
    }
  }
  return index;
}

absl::Status ReadSealedPayload(
    ReadAhead* packs, const std::string& key, uint64_t object_bytes,
    const v1::SealedPayload& payload,
    const std::function<absl::Status(absl::string_view)>& callback) {
  const absl::Status status = ForEachSealedFrame(
      [&](uint64_t offset, uint64_t bytes) {
        return packs->Get(key, object_bytes, offset, bytes);
      },
      key, payload.offset_bytes(), payload.frames(), callback);
  // Wrong bytes are not kept in the cache.
  if (absl::IsDataLoss(status)) packs->Forget(key);
  return status;
}

}  // namespace rankprobe
