// SPDX-License-Identifier: Apache-2.0
#include "collector/store/payload_table.h"

#include <utility>

#include "absl/strings/match.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "common/io/content_hash.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

// Limit for cached digests of complete payloads, which answer HasPayload
// without the index.
constexpr size_t kMaxKnownPayloads = 1 << 20;

}  // namespace

absl::StatusOr<bool> PayloadTable::IsWhole(uint32_t run,
                                           absl::string_view digest,
                                           uint64_t length) {
  const std::string key = keys::Payload(run, digest, length);
  if (whole_.contains(key)) return true;
  RP_ASSIGN_OR_RETURN(const std::optional<v1::PayloadRow> row,
                      GetRow<v1::PayloadRow>(index_, key));
  if (!row.has_value() || row->corrupt() || row->damaged()) return false;
  if (whole_.size() > kMaxKnownPayloads) whole_.clear();
  whole_.insert(key);
  return true;
}

absl::Status PayloadTable::DropRows(const std::string& prefix,
                                    CommitWork* work) {
  return index_->Scan(prefix, [&](absl::string_view key, absl::string_view) {
    work->batch->Delete(key);
    work->dropped.insert(std::string(key));
    return absl::OkStatus();
  });
}

absl::StatusOr<Partial*> PayloadTable::LoadPartial(const std::string& prefix,
                                                   CommitWork* work) {
  if (Partial* const found = partials_.Find(prefix); found != nullptr) {
    if (work->partials_before.count(prefix) == 0)
      work->partials_before.emplace(prefix, found->Clone());
    return found;
  }
  work->partials_before.try_emplace(prefix, std::nullopt);
  Partial partial;
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> first,
                      index_->Get(keys::AtOffset(prefix, 0)));
  if (!first.has_value()) return partials_.Put(prefix, std::move(partial));
  // After a restart the state is computed again from the stored chunks.
  const absl::Status loaded =
      index_->Scan(prefix, [&](absl::string_view key, absl::string_view value) {
        v1::ChunkRow row;
        if (!ParseRow(value, &row) ||
            keys::ParseChunkOffset(key) != partial.next_offset)
          return absl::DataLossError("the chunks of a payload have a gap");
        std::string data;
        RP_RETURN_IF_ERROR(segments_->Read(row, &data));
        partial.hash.Add(data);
        partial.next_offset += data.size();
        return absl::OkStatus();
      });
  if (absl::IsDataLoss(loaded)) {
    // The stored chunks are damaged: this sender's chunks are deleted, and the
    // ledger reports the payload as missing unless it is sent again from the
    // beginning.
    RP_RETURN_IF_ERROR(DropRows(prefix, work));
    partial = Partial();
  } else if (!loaded.ok()) {
    return loaded;
  }
  return partials_.Put(prefix, std::move(partial));
}

absl::Status PayloadTable::AddChunk(v1::RunRow* run, uint64_t sender,
                                    const v1::PayloadChunk& chunk,
                                    absl::string_view content_digest,
                                    CommitWork* work) {
  const uint64_t size = chunk.data().size(), length = chunk.length_bytes();
  RP_ASSIGN_OR_RETURN(const bool whole,
                      IsWhole(run->id(), chunk.digest(), length));
  if (whole) {
    // Keeps the payload until the record that refers to it arrives.
    Touch(keys::Payload(run->id(), chunk.digest(), length));
    return absl::OkStatus();
  }
  ChunkToAppend append{.run = run->id(),
                       .digest = chunk.digest(),
                       .payload_length = length,
                       .data = chunk.data(),
                       .crc32c = chunk.crc32c()};
  const std::string prefix =
      keys::PartialPrefix(run->id(), chunk.digest(), length, sender);
  if (size == length) {
    // Most payloads are one chunk.
    work->chunks.push_back(append);
    work->chunk_keys.push_back(
        keys::Chunk(run->id(), chunk.digest(), length, 0));
    PayloadHash hash;
    hash.Add(chunk.data());
    return FinishPayload(run, chunk, prefix, hash.Digest(), content_digest,
                         work);
  }
  RP_ASSIGN_OR_RETURN(Partial* const partial, LoadPartial(prefix, work));
  // The chunk before it was lost: the payload stays incomplete, and the ledger
  // says so.
  if (chunk.offset_bytes() > partial->next_offset) return absl::OkStatus();
  // The sender may have divided the payload differently before: only the new
  // bytes are used.
  const uint64_t known = partial->next_offset - chunk.offset_bytes();
  if (known >= size) return absl::OkStatus();
  append.data.remove_prefix(known);
  append.offset = partial->next_offset;
  if (known > 0) append.crc32c = Crc32c(append.data);
  partial->hash.Add(append.data);
  partial->next_offset += append.data.size();
  work->chunks.push_back(append);
  work->chunk_keys.push_back(keys::AtOffset(prefix, append.offset));
  if (partial->next_offset < length) return absl::OkStatus();
  const std::string digest = partial->hash.Digest();
  partials_.Erase(prefix);
  return FinishPayload(run, chunk, prefix, digest, content_digest, work);
}

absl::Status PayloadTable::FinishPayload(v1::RunRow* run,
                                         const v1::PayloadChunk& chunk,
                                         const std::string& partial,
                                         const std::string& digest,
                                         absl::string_view content_digest,
                                         CommitWork* work) {
  const uint64_t length = chunk.length_bytes();
  const bool one_chunk = chunk.data().size() == length;
  const std::string key = keys::Payload(run->id(), chunk.digest(), length);
  if (digest != (content_digest.empty() ? chunk.digest() : content_digest)) {
    // The bytes do not match the digest, so they are not kept; chunks of other
    // senders are not touched.
    for (std::string& pending : work->chunk_keys) {
      if (absl::StartsWith(pending, partial)) pending.clear();
    }
    if (one_chunk) work->chunk_keys.back().clear();
    RP_RETURN_IF_ERROR(DropRows(partial, work));
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> row, index_->Get(key));
    if (row.has_value()) return absl::OkStatus();
    v1::PayloadRow corrupt;
    corrupt.set_corrupt(true);
    work->batch->Put(key, corrupt.SerializeAsString());
    return absl::OkStatus();
  }
  // Rows of an earlier copy that was damaged or lost its end are deleted first.
  const std::string chunks =
      keys::ChunkPrefix(run->id(), chunk.digest(), length);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> first,
                      index_->Get(keys::AtOffset(chunks, 0)));
  if (first.has_value()) RP_RETURN_IF_ERROR(DropRows(chunks, work));
  if (!one_chunk) {
    RP_RETURN_IF_ERROR(index_->Scan(
        partial, [&](absl::string_view row, absl::string_view value) {
          // The batch is not written yet, so the scan still finds rows that it
          // deletes.
          if (work->dropped.contains(row)) return absl::OkStatus();
          work->batch->Put(keys::ChunkOfPartial(row), value);
          work->batch->Delete(row);
          return absl::OkStatus();
        }));
    for (std::string& pending : work->chunk_keys) {
      if (absl::StartsWith(pending, partial))
        pending = keys::ChunkOfPartial(pending);
    }
  }
  v1::PayloadRow row;
  row.set_content_digest(std::string(content_digest));
  work->batch->Put(key, row.SerializeAsString());
  if (whole_.insert(key).second) work->whole_added.push_back(key);
  run->set_stored_payload_bytes(run->stored_payload_bytes() + length);
  return absl::OkStatus();
}

void PayloadTable::Undo(CommitWork* work) {
  for (const std::string& key : work->whole_added) whole_.erase(key);
  for (auto& [prefix, partial] : work->partials_before) {
    if (partial.has_value()) {
      partials_.Put(prefix, *std::move(partial));
    } else {
      partials_.Erase(prefix);
    }
  }
}

void PayloadTable::EraseRun(uint32_t run) {
  partials_.Erase(keys::TableOfRun('q', run));
  absl::erase_if(whole_, [run](const std::string& key) {
    return keys::ParseRun(key) == run;
  });
}

std::optional<v1::PayloadRow> PayloadTable::RowThatIs(bool damaged,
                                                      const std::string& key) {
  auto row = GetRow<v1::PayloadRow>(index_, key);
  if (!row.ok() || !row->has_value() || (*row)->damaged() != damaged)
    return std::nullopt;
  return *std::move(row);
}

void PayloadTable::MarkDamaged(const std::string& key,
                               const v1::ChunkRow& row) {
  std::optional<v1::PayloadRow> marked = RowThatIs(/*damaged=*/false, key);
  if (!marked.has_value()) return;
  marked->set_damaged(true);
  marked->set_damaged_segment(row.segment());
  marked->set_damaged_offset_bytes(row.offset_bytes());
  // If the disk is full, the next reader finds the damage again.
  if (PutRow(index_, key, marked->SerializeAsString(), /*sync=*/false).ok())
    whole_.erase(key);
}

void PayloadTable::MarkSound(const std::string& key) {
  std::optional<v1::PayloadRow> sound = RowThatIs(/*damaged=*/true, key);
  if (!sound.has_value()) return;
  sound->clear_damaged();
  sound->clear_damaged_segment();
  sound->clear_damaged_offset_bytes();
  // If the write fails, the next verification repeats it.
  PutRow(index_, key, sound->SerializeAsString(), /*sync=*/false).IgnoreError();
}

}  // namespace rankprobe
