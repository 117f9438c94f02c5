// SPDX-License-Identifier: Apache-2.0
#include "collector/store/payload_finder.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "collector/store/chunk_packer.h"
#include "collector/store/segment_reader.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"

namespace rankprobe {
namespace {

// A chunk arrived in one frame, which is limited to 1 MiB.
constexpr uint64_t kMaxChunkBytes = 16 << 20;

// Returns the pieces that cover bytes 0 to `length` without a gap; none if
// there is no such sequence.
std::vector<PayloadFinder::Piece> Chain(
    const std::vector<PayloadFinder::Piece>& pieces, uint64_t length) {
  // Pieces are visited from the last offset, so that a piece is only added if
  // others lead from it to the end.
  std::map<uint64_t, PayloadFinder::Piece> leads;
  std::vector<const PayloadFinder::Piece*> by_offset;
  by_offset.reserve(pieces.size());
  for (const PayloadFinder::Piece& piece : pieces) by_offset.push_back(&piece);
  absl::c_stable_sort(by_offset, [](const PayloadFinder::Piece* a,
                                    const PayloadFinder::Piece* b) {
    return a->offset > b->offset;
  });
  for (const PayloadFinder::Piece* const piece : by_offset) {
    const uint64_t end = piece->offset + piece->row.length_bytes();
    if (end == length || leads.count(end) > 0) leads[piece->offset] = *piece;
  }
  std::vector<PayloadFinder::Piece> chain;
  for (uint64_t at = 0; at < length; at += chain.back().row.length_bytes()) {
    const auto it = leads.find(at);
    if (it == leads.end() || it->second.row.length_bytes() == 0) return {};
    chain.push_back(it->second);
  }
  return chain;
}

}  // namespace

absl::Status PayloadFinder::ReadSegments(
    const std::function<void(const std::string& place)>& on_damage) {
  for (const PayloadStore::SegmentInfo& segment : store_->Segments()) {
    RP_RETURN_IF_ERROR(ReadSegment(
        file_system_, store_->SegmentPath(segment.number), segment.size_bytes,
        [&](const SegmentFrame& frame) {
          Found(segment.number, frame);
          return absl::OkStatus();
        },
        [&](uint64_t offset) {
          on_damage(PayloadStore::PlaceText(segment.number, offset));
        }));
  }
  return absl::OkStatus();
}

void PayloadFinder::Found(uint64_t segment, const SegmentFrame& frame) {
  Piece piece;
  piece.offset = frame.header.offset;
  piece.row.set_segment(segment);
  piece.row.set_offset_bytes(frame.data_offset);
  piece.row.set_length_bytes(frame.data.size());
  piece.row.set_crc32c(frame.header.crc32c);
  std::vector<Piece>& pieces = found_[keys::Payload(
      frame.header.run, frame.header.digest, frame.header.payload_length)];
  pieces.push_back(piece);
  // A header does not record whether its data are a zstd frame of the chunk;
  // the digest of the complete payload decides.
  const std::optional<uint64_t> unpacked = UnpackedBytes(frame.data);
  std::string data;
  if (!unpacked.has_value() || *unpacked > kMaxChunkBytes ||
      *unpacked > frame.header.payload_length ||
      frame.header.offset > frame.header.payload_length - *unpacked ||
      !Unpack(frame.data, *unpacked, &data))
    return;
  piece.row.set_length_bytes(*unpacked);
  piece.row.set_compressed_bytes(frame.data.size());
  pieces.push_back(piece);
}

absl::StatusOr<std::optional<std::string>> PayloadFinder::ContentOf(
    const std::vector<Piece>& chain, const keys::PayloadParts& payload) {
  PayloadHash hash;
  std::string data;
  for (const Piece& piece : chain) {
    const absl::Status read = store_->Read(piece.row, &data);
    if (absl::IsDataLoss(read)) return std::nullopt;
    RP_RETURN_IF_ERROR(read);
    hash.Add(data);
  }
  const std::string content = hash.Digest();
  if (content == payload.digest) return content;
  for (const std::string& principal : principals_[payload.run]) {
    if (name_of_(principal, content) == payload.digest) return content;
  }
  return std::nullopt;
}

absl::StatusOr<PayloadFinder::Whole> PayloadFinder::Assemble(
    const keys::PayloadParts& payload, const std::vector<Piece>& pieces) {
  for (const bool compressed : {true, false}) {
    std::vector<Piece> some;
    for (const Piece& piece : pieces) {
      // Of two readings of one frame the other one.
      const bool two = absl::c_any_of(pieces, [&piece](const Piece& other) {
        return other.row.segment() == piece.row.segment() &&
               other.row.offset_bytes() == piece.row.offset_bytes() &&
               other.row.compressed_bytes() != piece.row.compressed_bytes();
      });
      if (!two || (piece.row.compressed_bytes() > 0) == compressed)
        some.push_back(piece);
    }
    std::vector<Piece> chain = Chain(some, payload.length);
    if (chain.empty()) continue;
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> content,
                        ContentOf(chain, payload));
    if (content.has_value()) return Whole{std::move(chain), *content};
  }
  return Whole();
}

}  // namespace rankprobe
