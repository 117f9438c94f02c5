// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/sealed_object.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kTrailerBytes = 28;
// One request reads the index of most objects.
constexpr uint64_t kTailBytes = 256 << 10;
constexpr int kSealedLevel = 3;

absl::string_view MagicOf(SealedKind kind) {
  return kind == SealedKind::kRecords
             ? absl::string_view("RPSREC\0\1", kMagicBytes)
             : absl::string_view("RPSPAK\0\1", kMagicBytes);
}

template <typename T>
void AppendNumber(T value, std::string* out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

template <typename T>
T NumberAt(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

absl::Status NotSealed(const std::string& key, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat("sealed object ", key, " is damaged: ", why));
}

}  // namespace

struct SealedObjectWriter::Compressor {
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  const std::unique_ptr<ZSTD_CCtx, Free> context{ZSTD_createCCtx()};
  std::string out;
};

SealedObjectWriter::SealedObjectWriter(SealedKind kind,
                                       std::unique_ptr<WritableFile> file)
    : kind_(kind),
      file_(std::move(file)),
      compressor_(std::make_unique<Compressor>()) {}

SealedObjectWriter::~SealedObjectWriter() = default;

absl::StatusOr<std::unique_ptr<SealedObjectWriter>> SealedObjectWriter::Create(
    SealedKind kind, FileSystem* file_system, const std::string& path) {
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<WritableFile> file,
      file_system->OpenForWrite(path, FileSystem::OpenMode::kTruncate));
  std::unique_ptr<SealedObjectWriter> writer(
      new SealedObjectWriter(kind, std::move(file)));
  if (writer->compressor_->context == nullptr)
    return absl::ResourceExhaustedError("no memory to compress with");
  RP_RETURN_IF_ERROR(writer->Append(MagicOf(kind)));
  return writer;
}

absl::Status SealedObjectWriter::Append(absl::string_view bytes) {
  hash_.Add(bytes);
  bytes_ += bytes.size();
  return file_->Append(bytes);
}

absl::StatusOr<v1::SealedFrame> SealedObjectWriter::AddFrame(
    absl::string_view raw) {
  v1::SealedFrame frame;
  std::string& out = compressor_->out;
  out.resize(ZSTD_compressBound(raw.size()));
  const size_t packed =
      ZSTD_compressCCtx(compressor_->context.get(), out.data(), out.size(),
                        raw.data(), raw.size(), kSealedLevel);
  absl::string_view stored = raw;
  if (ZSTD_isError(packed) == 0 && packed <= raw.size() / 10 * 9) {
    stored = absl::string_view(out).substr(0, packed);
    frame.set_raw_bytes(raw.size());
  }
  frame.set_stored_bytes(stored.size());
  frame.set_crc32c(Crc32c(stored));
  RP_RETURN_IF_ERROR(Append(stored));
  return frame;
}

absl::StatusOr<v1::SealedObject> SealedObjectWriter::Finish(
    absl::string_view index) {
  RP_RETURN_IF_ERROR(Append(index));
  std::string trailer;
  AppendNumber<uint64_t>(index.size(), &trailer);
  AppendNumber<uint64_t>(bytes_ + kTrailerBytes, &trailer);
  AppendNumber<uint32_t>(Crc32c(index), &trailer);
  trailer.append(MagicOf(kind_).data(), kMagicBytes);
  RP_RETURN_IF_ERROR(Append(trailer));
  RP_RETURN_IF_ERROR(file_->Sync());
  RP_RETURN_IF_ERROR(file_->Close());
  v1::SealedObject object;
  object.set_name(absl::BytesToHexString(hash_.Digest()));
  object.set_bytes(bytes_);
  return object;
}

absl::StatusOr<std::string> ReadSealedIndex(ObjectStore* store,
                                            const std::string& key,
                                            SealedKind kind,
                                            uint64_t object_bytes) {
  RP_ASSIGN_OR_RETURN(const ObjectTail tail, store->GetTail(key, kTailBytes));
  if (tail.object_bytes != object_bytes) {
    return NotSealed(key,
                     absl::StrCat("it has ", tail.object_bytes,
                                  " bytes and should have ", object_bytes));
  }
  if (tail.bytes.size() < kTrailerBytes + kMagicBytes)
    return NotSealed(key, "it is too short");
  const absl::string_view trailer =
      absl::string_view(tail.bytes).substr(tail.bytes.size() - kTrailerBytes);
  const auto index_bytes = NumberAt<uint64_t>(trailer, 0);
  if (trailer.substr(20) != MagicOf(kind) ||
      NumberAt<uint64_t>(trailer, 8) != object_bytes ||
      index_bytes > kMaxSealedIndexBytes ||
      index_bytes > object_bytes - kTrailerBytes - kMagicBytes)
    return NotSealed(key, "it has no trailer");
  std::string index;
  if (index_bytes + kTrailerBytes <= tail.bytes.size()) {
    index = tail.bytes.substr(tail.bytes.size() - kTrailerBytes - index_bytes,
                              index_bytes);
  } else {
    RP_ASSIGN_OR_RETURN(
        index, store->Get(key, object_bytes - kTrailerBytes - index_bytes,
                          index_bytes));
  }
  if (Crc32c(index) != NumberAt<uint32_t>(trailer, 16))
    return NotSealed(key, "its index fails its checksum");
  return index;
}

absl::StatusOr<std::string> DecodeSealedFrame(const v1::SealedFrame& frame,
                                              absl::string_view stored) {
  if (stored.size() != frame.stored_bytes() || Crc32c(stored) != frame.crc32c())
    return absl::DataLossError("a sealed frame fails its checksum");
  if (frame.raw_bytes() == 0) return std::string(stored);
  if (frame.raw_bytes() > 2 * kSealedFrameBytes)
    return absl::DataLossError("a sealed frame says it is too large");
  std::string raw(frame.raw_bytes(), '\0');
  const size_t bytes =
      ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(bytes) != 0 || bytes != raw.size())
    return absl::DataLossError("a sealed frame cannot be decompressed");
  return raw;
}

}  // namespace rankprobe
