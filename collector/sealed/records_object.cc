// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/records_object.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/records/record_checksum.h"
#include "google/protobuf/io/coded_stream.h"

namespace rankprobe {
namespace {

// Approximate size of one request.
constexpr uint64_t kReadAheadBytes = 8 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<RecordsObjectWriter>>
RecordsObjectWriter::Create(FileSystem* file_system, const std::string& path) {
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<SealedObjectWriter> object,
      SealedObjectWriter::Create(SealedKind::kRecords, file_system, path));
  return std::unique_ptr<RecordsObjectWriter>(
      new RecordsObjectWriter(std::move(object)));
}

absl::Status RecordsObjectWriter::EndFrame() {
  if (raw_.empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(v1::SealedFrame frame, object_->AddFrame(raw_));
  *index_.mutable_members(index_.members_size() - 1)->add_frames() =
      std::move(frame);
  raw_.clear();
  return absl::OkStatus();
}

absl::Status RecordsObjectWriter::BeginMember(int64_t step,
                                              uint64_t incarnation) {
  RP_RETURN_IF_ERROR(EndFrame());
  v1::SealedMember* const member = index_.add_members();
  member->set_step(step);
  member->set_incarnation(incarnation);
  member->set_offset_bytes(object_->bytes());
  return absl::OkStatus();
}

absl::Status RecordsObjectWriter::Add(const v1::Record& record) {
  std::string encoded, bytes;
  RP_RETURN_IF_ERROR(EncodeRecord(record, &encoded));
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteVarint32(static_cast<uint32_t>(encoded.size()));
    out.WriteString(encoded);
  }
  if (!raw_.empty() && raw_.size() + bytes.size() > kSealedFrameBytes)
    RP_RETURN_IF_ERROR(EndFrame());
  raw_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<v1::SealedObject> RecordsObjectWriter::Finish() {
  RP_RETURN_IF_ERROR(EndFrame());
  return object_->Finish(index_.SerializeAsString());
}

bool FramesFit(
    uint64_t offset_bytes,
    const google::protobuf::RepeatedPtrField<v1::SealedFrame>& frames,
    uint64_t object_bytes) {
  uint64_t at = offset_bytes;
  for (const v1::SealedFrame& frame : frames) {
    if (at > object_bytes || frame.stored_bytes() > object_bytes - at ||
        frame.stored_bytes() == 0 ||
        frame.stored_bytes() > 2 * kSealedFrameBytes ||
        frame.raw_bytes() > 2 * kSealedFrameBytes)
      return false;
    at += frame.stored_bytes();
  }
  return true;
}

absl::Status ForEachSealedFrame(
    const ReadRange& read, const std::string& key, uint64_t offset_bytes,
    const google::protobuf::RepeatedPtrField<v1::SealedFrame>& frames,
    const std::function<absl::Status(absl::string_view raw)>& callback) {
  uint64_t at = offset_bytes;
  for (int i = 0; i < frames.size();) {
    int next = i;
    uint64_t bytes = 0;
    do {
      bytes += frames[next++].stored_bytes();
    } while (next < frames.size() &&
             bytes + frames[next].stored_bytes() <= kReadAheadBytes);
    RP_ASSIGN_OR_RETURN(const std::string stored, read(at, bytes));
    at += bytes;
    for (absl::string_view rest = stored; i < next; ++i) {
      const absl::StatusOr<std::string> raw = DecodeSealedFrame(
          frames[i], rest.substr(0, frames[i].stored_bytes()));
      if (!raw.ok()) {
        return absl::DataLossError(
            absl::StrCat(key, ": ", raw.status().message()));
      }
      rest.remove_prefix(frames[i].stored_bytes());
      RP_RETURN_IF_ERROR(callback(*raw));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SealedRecordsIndex> ReadRecordsIndex(ObjectStore* store,
                                                        const std::string& key,
                                                        uint64_t object_bytes) {
  RP_ASSIGN_OR_RETURN(
      const std::string bytes,
      ReadSealedIndex(store, key, SealedKind::kRecords, object_bytes));
  v1::SealedRecordsIndex index;
  if (!index.ParseFromString(bytes))
    return absl::DataLossError(absl::StrCat(key, ": its index is none"));
  for (const v1::SealedMember& member : index.members()) {
    if (!FramesFit(member.offset_bytes(), member.frames(), object_bytes))
      return absl::DataLossError(absl::StrCat(key, ": frames go beyond it"));
  }
  return index;
}

absl::Status ReadSealedRecords(
    ObjectStore* store, const std::string& key, const v1::SealedMember& member,
    const std::function<absl::Status(const v1::Record&)>& callback) {
  v1::Record record;
  return ForEachSealedFrame(
      [&](uint64_t offset, uint64_t bytes) {
        return store->Get(key, offset, bytes);
      },
      key, member.offset_bytes(), member.frames(),
      [&](absl::string_view raw) -> absl::Status {
        google::protobuf::io::CodedInputStream in(
            reinterpret_cast<const uint8_t*>(raw.data()),
            static_cast<int>(raw.size()));
        while (in.CurrentPosition() < static_cast<int>(raw.size())) {
          uint32_t bytes = 0;
          if (!in.ReadVarint32(&bytes) ||
              bytes > raw.size() - static_cast<size_t>(in.CurrentPosition()))
            return absl::DataLossError(
                absl::StrCat(key, ": a record's length exceeds its frame"));
          const absl::string_view text =
              raw.substr(static_cast<size_t>(in.CurrentPosition()), bytes);
          if (const absl::Status status = DecodeRecord(text, &record);
              !status.ok())
            return absl::DataLossError(
                absl::StrCat(key, ": ", status.message()));
          in.Skip(static_cast<int>(bytes));
          RP_RETURN_IF_ERROR(callback(record));
        }
        return absl::OkStatus();
      });
}

}  // namespace rankprobe
