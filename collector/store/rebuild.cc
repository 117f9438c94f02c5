#include "collector/store/rebuild.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collector/store/chunk_packer.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/payload_store.h"
#include "collector/store/segment_reader.h"
#include "collector/store/step_counts.h"
#include "collector/store/upgrade.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"

namespace rankprobe {
namespace {

constexpr size_t kRowsPerBatch = 5000;
constexpr size_t kMaxDamagedTexts = 100;
// A chunk came in one frame of the wire, which holds 1 MiB.
constexpr uint64_t kMaxChunkBytes = 16 << 20;

// A batch that writes itself every so many rows.
class RowWriter {
 public:
  explicit RowWriter(Index* index) : index_(index), batch_(index->NewBatch()) {}
  absl::Status Put(absl::string_view key, absl::string_view value) {
    batch_->Put(key, value);
    return Count();
  }
  absl::Status Delete(absl::string_view key) {
    batch_->Delete(key);
    return Count();
  }
  absl::Status Finish() { return index_->Write(std::move(batch_), true); }

 private:
  absl::Status Count() {
    if (++rows_ % kRowsPerBatch != 0) return absl::OkStatus();
    return index_->Write(std::exchange(batch_, index_->NewBatch()), false);
  }

  Index* const index_;
  std::unique_ptr<IndexBatch> batch_;
  size_t rows_ = 0;
};

template <typename M>
bool Parse(absl::string_view value, M* message) {
  return message->ParseFromArray(value.data(), static_cast<int>(value.size()));
}

// Where one piece of a payload lies.
struct Piece {
  uint64_t offset = 0;
  v1::ChunkRow row;
};

// The pieces that make up bytes 0 to `length` without a gap; none if there are
// no such.
std::vector<Piece> Chain(const std::vector<Piece>& pieces, uint64_t length) {
  // Last come those that lead to the end.
  std::map<uint64_t, Piece> leads;
  std::vector<const Piece*> by_offset;
  by_offset.reserve(pieces.size());
  for (const Piece& piece : pieces) by_offset.push_back(&piece);
  std::stable_sort(
      by_offset.begin(), by_offset.end(),
      [](const Piece* a, const Piece* b) { return a->offset > b->offset; });
  for (const Piece* const piece : by_offset) {
    const uint64_t end = piece->offset + piece->row.length_bytes();
    if (end == length || leads.count(end) > 0) leads[piece->offset] = *piece;
  }
  std::vector<Piece> chain;
  for (uint64_t at = 0; at < length; at += chain.back().row.length_bytes()) {
    const auto it = leads.find(at);
    if (it == leads.end() || it->second.row.length_bytes() == 0) return {};
    chain.push_back(it->second);
  }
  return chain;
}

class Rebuilder {
 public:
  Rebuilder(const StoreOptions& options, FileSystem* file_system,
            const Clock* clock, const PayloadNameFn& name_of)
      : options_(options),
        file_system_(file_system),
        clock_(clock),
        name_of_(name_of) {}

  absl::StatusOr<RebuildReport> Run() {
    RP_RETURN_IF_ERROR(OpenIndex());
    RP_RETURN_IF_ERROR(ReadSegments());
    RP_RETURN_IF_ERROR(ReadPrincipals());
    RP_RETURN_IF_ERROR(Payloads());
    RP_RETURN_IF_ERROR(Records());
    RP_RETURN_IF_ERROR(Runs());
    RP_RETURN_IF_ERROR(Marks());
    return report_;
  }

 private:
  absl::Status OpenIndex() {
    IndexOptions index;
    index.directory = options_.data_dir + "/index";
    index.write_buffer_bytes = options_.leveldb_write_buffer_bytes;
    index.cache_bytes = options_.leveldb_cache_bytes;
    index.file_system = file_system_;
    RP_RETURN_IF_ERROR(file_system_->CreateDirectories(index.directory));
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        file_system_->List(index.directory));
    const bool any =
        std::any_of(names.begin(), names.end(), [](const std::string& name) {
          return absl::EndsWith(name, ".log") || absl::EndsWith(name, ".ldb") ||
                 absl::EndsWith(name, ".sst") ||
                 absl::StartsWith(name, "MANIFEST-");
        });
    if (any) RP_RETURN_IF_ERROR(RepairLevelDbIndex(index));
    RP_ASSIGN_OR_RETURN(index_, OpenLevelDbIndex(index));
    // A newer format is left alone.
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> schema,
                        index_->Get(keys::kSchema));
    RP_RETURN_IF_ERROR(BringUpToDate(index_.get(), schema.value_or("")));
    PayloadStore::Known known;
    known.clean = true;
    RP_ASSIGN_OR_RETURN(payloads_,
                        PayloadStore::Open({options_.data_dir + "/segments",
                                            options_.segment_bytes, false},
                                           file_system_, known));
    return absl::OkStatus();
  }

  absl::Status ReadSegments() {
    for (const PayloadStore::SegmentInfo& segment : payloads_->Segments()) {
      RP_RETURN_IF_ERROR(ReadSegment(
          file_system_, payloads_->SegmentPath(segment.number),
          segment.size_bytes,
          [&](const SegmentFrame& frame) {
            Found(segment.number, frame);
            return absl::OkStatus();
          },
          [&](uint64_t offset) {
            ++report_.damaged_places;
            if (report_.damaged.size() < kMaxDamagedTexts) {
              report_.damaged.push_back(
                  PayloadStore::PlaceText(segment.number, offset));
            }
          }));
    }
    return absl::OkStatus();
  }

  void Found(uint64_t segment, const SegmentFrame& frame) {
    Piece piece;
    piece.offset = frame.offset;
    piece.row.set_segment(segment);
    piece.row.set_offset_bytes(frame.data_offset);
    piece.row.set_length_bytes(frame.data.size());
    piece.row.set_crc32c(frame.crc32c);
    std::vector<Piece>& pieces =
        found_[keys::Payload(frame.run, frame.digest, frame.payload_length)];
    pieces.push_back(piece);
    // A header does not say whether its data are a zstd frame of the chunk; the
    // digest of the whole will.
    const std::optional<uint64_t> unpacked = UnpackedBytes(frame.data);
    std::string data;
    if (!unpacked.has_value() || *unpacked > kMaxChunkBytes ||
        *unpacked > frame.payload_length ||
        frame.offset > frame.payload_length - *unpacked ||
        !Unpack(frame.data, *unpacked, &data))
      return;
    piece.row.set_length_bytes(*unpacked);
    piece.row.set_compressed_bytes(frame.data.size());
    pieces.push_back(piece);
  }

  absl::Status ReadPrincipals() {
    return index_->Scan(
        "i", [&](absl::string_view key, absl::string_view value) {
          const std::optional<uint32_t> run = keys::ParseRun(key);
          v1::IncarnationRow row;
          if (run.has_value() && Parse(value, &row) && !row.principal().empty())
            principals_[*run].insert(row.principal());
          return absl::OkStatus();
        });
  }

  // Whether the bytes are those of `payload`; then their own digest.
  absl::StatusOr<std::optional<std::string>> ContentOf(
      const std::vector<Piece>& chain, const keys::PayloadParts& payload) {
    PayloadHash hash;
    std::string data;
    for (const Piece& piece : chain) {
      const absl::Status read = payloads_->Read(piece.row, &data);
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

  struct Whole {
    std::vector<Piece> chain;
    std::string content_digest;
  };

  // The pieces of one payload, or none.
  absl::StatusOr<Whole> Assemble(const keys::PayloadParts& payload,
                                 const std::vector<Piece>& pieces) {
    for (const bool compressed : {true, false}) {
      std::vector<Piece> some;
      for (const Piece& piece : pieces) {
        // Of two readings of one frame the other one.
        const bool two = std::any_of(
            pieces.begin(), pieces.end(), [&piece](const Piece& other) {
              return other.row.segment() == piece.row.segment() &&
                     other.row.offset_bytes() == piece.row.offset_bytes() &&
                     other.row.compressed_bytes() !=
                         piece.row.compressed_bytes();
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

  // Whether the index has it, with chunks that are there.
  absl::StatusOr<bool> IsWhole(const std::string& key,
                               const keys::PayloadParts& payload) {
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                        index_->Get(key));
    v1::PayloadRow row;
    if (!value.has_value() || !row.ParseFromString(*value) || row.corrupt() ||
        row.damaged())
      return false;
    uint64_t at = 0;
    bool sound = true;
    RP_RETURN_IF_ERROR(index_->Scan(
        keys::ChunkPrefix(payload.run, payload.digest, payload.length),
        [&](absl::string_view chunk, absl::string_view bytes) {
          v1::ChunkRow found;
          sound = sound && Parse(bytes, &found) &&
                  keys::ParseChunkOffset(chunk) == at &&
                  payloads_->Contains(found);
          at += found.length_bytes();
          return absl::OkStatus();
        }));
    return sound && at == payload.length;
  }

  absl::Status Payloads() {
    // Those that only the index knows of are looked at too.
    RP_RETURN_IF_ERROR(
        index_->Scan("p", [&](absl::string_view key, absl::string_view) {
          if (keys::ParsePayload(key).has_value()) found_[std::string(key)];
          return absl::OkStatus();
        }));
    RowWriter rows(index_.get());
    for (const auto& [key, pieces] : found_) {
      const std::optional<keys::PayloadParts> payload = keys::ParsePayload(key);
      if (!payload.has_value()) continue;
      runs_.insert(payload->run);
      RP_ASSIGN_OR_RETURN(const bool whole, IsWhole(key, *payload));
      if (whole) {
        ++report_.payloads;
        stored_[payload->run] += payload->length;
        continue;
      }
      RP_ASSIGN_OR_RETURN(const Whole found, Assemble(*payload, pieces));
      const std::string prefix =
          keys::ChunkPrefix(payload->run, payload->digest, payload->length);
      RP_RETURN_IF_ERROR(
          index_->Scan(prefix, [&](absl::string_view chunk, absl::string_view) {
            return rows.Delete(chunk);
          }));
      if (found.chain.empty()) {
        ++report_.payloads_not_whole;
        RP_RETURN_IF_ERROR(rows.Delete(key));
        continue;
      }
      for (const Piece& piece : found.chain) {
        RP_RETURN_IF_ERROR(rows.Put(keys::AtOffset(prefix, piece.offset),
                                    piece.row.SerializeAsString()));
      }
      v1::PayloadRow row;
      if (found.content_digest != payload->digest)
        row.set_content_digest(found.content_digest);
      RP_RETURN_IF_ERROR(rows.Put(key, row.SerializeAsString()));
      ++report_.payloads;
      ++report_.payloads_found;
      stored_[payload->run] += payload->length;
    }
    RP_RETURN_IF_ERROR(rows.Finish());
    return DropUnowned();
  }

  // Chunks of payloads that are not whole. Their senders, if they live, begin
  // anew.
  absl::Status DropUnowned() {
    RowWriter rows(index_.get());
    RP_RETURN_IF_ERROR(index_->Scan(
        "k", [&](absl::string_view key, absl::string_view) -> absl::Status {
          std::string payload(key.substr(0, key.size() - 8));
          payload[0] = 'p';
          RP_ASSIGN_OR_RETURN(const auto owner, index_->Get(payload));
          return owner.has_value() ? absl::OkStatus() : rows.Delete(key);
        }));
    RP_RETURN_IF_ERROR(
        index_->Scan("q", [&](absl::string_view key, absl::string_view) {
          return rows.Delete(key);
        }));
    return rows.Finish();
  }

  struct Step {
    v1::StepRow old;
    v1::StepRow counted;
  };

  // Counts every step anew and writes down again what it refers to.
  absl::Status Records() {
    RowWriter rows(index_.get());
    std::map<std::string, Step> steps;
    RP_RETURN_IF_ERROR(
        index_->Scan("s", [&](absl::string_view key, absl::string_view value) {
          if (!keys::ParseStep(key).has_value() ||
              !Parse(value, &steps[std::string(key)].old)) {
            steps.erase(std::string(key));
            return rows.Delete(key);
          }
          return absl::OkStatus();
        }));
    RP_RETURN_IF_ERROR(index_->Scan(
        "c",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          const std::optional<uint32_t> run = keys::ParseRun(key);
          const std::optional<keys::StepParts> place = keys::ParseStep(key);
          v1::Record record;
          if (!run.has_value() || !place.has_value() || !Parse(value, &record))
            return rows.Delete(key);
          Step& step = steps[keys::Step(*run, place->step, place->incarnation)];
          if (step.old.deleted_unix_ns() != 0) return rows.Delete(key);
          ++report_.records;
          absl::Status status;
          CountRecord(
              record,
              [&](const v1::PayloadRef& payload) {
                if (!status.ok() || payload.digest().size() != 16) return;
                referred_.insert(keys::Payload(*run, payload.digest(),
                                               payload.length_bytes()));
                status =
                    rows.Put(keys::Reference(*run, payload.digest(),
                                             payload.length_bytes(),
                                             place->step, place->incarnation),
                             "");
              },
              &step.counted);
          return status;
        }));
    for (auto& [key, step] : steps)
      RP_RETURN_IF_ERROR(WriteStep(key, &step, &rows));
    RP_RETURN_IF_ERROR(KeepUnreferred(&rows));
    return rows.Finish();
  }

  absl::Status WriteStep(const std::string& key, Step* step, RowWriter* rows) {
    const uint32_t run = *keys::ParseRun(key);
    runs_.insert(run);
    const uint64_t incarnation = keys::ParseStep(key)->incarnation;
    if (senders_.insert({run, incarnation}).second) {
      // Without its row the rank is not known any more.
      const std::string row_key = keys::Incarnation(run, incarnation);
      RP_ASSIGN_OR_RETURN(const auto known, index_->Get(row_key));
      v1::IncarnationRow row;
      if (!known.has_value() || !row.ParseFromString(*known)) {
        row.Clear();
        row.mutable_identity()->set_incarnation(incarnation);
        RP_RETURN_IF_ERROR(rows->Put(row_key, row.SerializeAsString()));
      }
    }
    if (step->old.deleted_unix_ns() != 0) {
      counted_[run] += step->old.records();
      return absl::OkStatus();
    }
    v1::StepRow& row = step->counted;
    row.set_updated_unix_ns(step->old.updated_unix_ns() != 0
                                ? step->old.updated_unix_ns()
                                : absl::ToUnixNanos(clock_->Now()));
    // What the rank said it had sent is kept: the ledger counts by it.
    if (!row.has_end() && step->old.has_end()) {
      *row.mutable_end() = step->old.end();
      row.set_end_order(step->old.end_order());
    }
    counted_[run] += row.records();
    return rows->Put(key, row.SerializeAsString());
  }

  // A payload that no record is left of would be freed as garbage: it stays
  // until its run is deleted.
  absl::Status KeepUnreferred(RowWriter* rows) {
    return index_->Scan(
        "p", [&](absl::string_view key, absl::string_view) -> absl::Status {
          const std::optional<keys::PayloadParts> payload =
              keys::ParsePayload(key);
          if (!payload.has_value() || referred_.count(std::string(key)) > 0)
            return absl::OkStatus();
          return rows->Put(keys::Reference(payload->run, payload->digest,
                                           payload->length, INT64_MAX, 0),
                           "");
        });
  }

  absl::Status Runs() {
    RowWriter rows(index_.get());
    std::map<uint32_t, std::pair<std::string, v1::RunRow>> named;
    std::set<std::string> names;
    RP_RETURN_IF_ERROR(
        index_->Scan("r", [&](absl::string_view key, absl::string_view value) {
          v1::RunRow row;
          if (!Parse(value, &row) || row.id() == 0) return rows.Delete(key);
          names.emplace(key.substr(1));
          named[row.id()] = {std::string(key.substr(1)), row};
          return absl::OkStatus();
        }));
    for (const uint32_t run : runs_) {
      if (named.count(run) > 0) continue;
      RP_ASSIGN_OR_RETURN(const auto deleted,
                          index_->Get(keys::DeletedRun(run)));
      if (deleted.has_value()) continue;
      std::string name = absl::StrCat("recovered-", run);
      while (names.count(name) > 0) name.push_back('x');
      v1::RunRow row;
      row.set_id(run);
      row.set_created_unix_ns(absl::ToUnixNanos(clock_->Now()));
      row.set_updated_unix_ns(row.created_unix_ns());
      named[run] = {name, row};
    }
    for (auto& [run, entry] : named) {
      entry.second.set_records(counted_[run]);
      entry.second.set_stored_payload_bytes(stored_[run]);
      RP_RETURN_IF_ERROR(
          rows.Put(keys::Run(entry.first), entry.second.SerializeAsString()));
    }
    report_.runs = named.size();
    return rows.Finish();
  }

  // The archive is as after a clean end.
  absl::Status Marks() {
    RowWriter rows(index_.get());
    RP_RETURN_IF_ERROR(
        index_->Scan("z", [&](absl::string_view key, absl::string_view) {
          return rows.Delete(key);
        }));
    keys::Synced synced;
    for (const PayloadStore::SegmentInfo& segment : payloads_->Segments()) {
      RP_RETURN_IF_ERROR(rows.Put(keys::Segment(segment.number), ""));
      synced.segment = segment.number;
      synced.offset = segment.size_bytes;
    }
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> old,
                        index_->Get(keys::kSynced));
    synced.count = keys::ParseSynced(old.value_or("")).value_or(synced).count;
    synced.count = std::max(synced.count, CountBeside()) + 1;
    RP_RETURN_IF_ERROR(rows.Put(keys::kSynced, keys::SyncedValue(synced)));
    RP_RETURN_IF_ERROR(rows.Put(keys::kClean, "1"));
    return rows.Finish();
  }

  uint64_t CountBeside() {
    const std::string path = options_.data_dir + "/synced";
    const auto size = file_system_->FileSize(path);
    const auto file = file_system_->OpenForRead(path);
    uint64_t count = 0;
    if (!size.ok() || !file.ok() || *size > 20) return 0;
    std::string text(*size, '\0');
    if (!(*file)->Read(0, absl::MakeSpan(text)).ok() ||
        !absl::SimpleAtoi(text, &count))
      return 0;
    return count;
  }

  const StoreOptions options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  const PayloadNameFn name_of_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<PayloadStore> payloads_;
  RebuildReport report_;
  // By key of table p.
  std::map<std::string, std::vector<Piece>> found_;
  // By run: who sent to it.
  std::map<uint32_t, std::set<std::string>> principals_;
  std::set<std::string> referred_;
  std::set<uint32_t> runs_;
  std::set<std::pair<uint32_t, uint64_t>> senders_;
  // By run: records, bytes of payloads.
  std::map<uint32_t, uint64_t> counted_, stored_;
};

}  // namespace

absl::StatusOr<RebuildReport> RebuildIndex(const StoreOptions& options,
                                           FileSystem* file_system,
                                           const Clock* clock,
                                           const PayloadNameFn& name_of) {
  if (!file_system->Exists(options.data_dir + "/segments") &&
      !file_system->Exists(options.data_dir + "/index")) {
    return absl::NotFoundError(
        absl::StrCat(options.data_dir, " holds no archive"));
  }
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                      file_system->Lock(options.data_dir + "/LOCK"));
  return Rebuilder(options, file_system, clock, name_of).Run();
}

}  // namespace rankprobe
