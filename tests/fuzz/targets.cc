// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/session/spool.h"
#include "collector/ingest/frame_validator.h"
#include "collector/object_store/directory_object_store.h"
#include "collector/object_store/s3_xml.h"
#include "collector/sealed/pack_object.h"
#include "collector/sealed/read_ahead.h"
#include "collector/sealed/records_object.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/store.h"
#include "common/io/crc32c.h"
#include "common/records/entry_names.h"
#include "common/testing/fault_file_system.h"

namespace rankprobe::fuzz {
namespace {

// An invariant that must hold for any input.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: broken: %s\n", what);
  std::abort();
}

StoreOptions Options() {
  StoreOptions options;
  options.data_dir = "/d";
  options.min_free_bytes = 0;
  options.segment_bytes = 1 << 16;
  options.leveldb_write_buffer_bytes = 64 << 10;
  options.leveldb_cache_bytes = 64 << 10;
  options.max_payload_bytes = 1 << 20;
  return options;
}

v1::Identity Someone() {
  v1::Identity identity;
  identity.set_run("run");
  identity.set_rank(1);
  identity.set_incarnation(1);
  return identity;
}

std::string DigestOf(absl::string_view data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  return {reinterpret_cast<const char*>(canonical.digest), 16};
}

// Everything a reader may ask, on an archive that may be damaged.
void ReadAll(Store* store) {
  const auto runs = store->ListRuns();
  if (!runs.ok()) return;
  for (const v1::RunInfo& run : *runs) {
    const auto steps = store->ListSteps(run.run());
    if (!steps.ok()) continue;
    for (const v1::StepInfo& step : *steps) {
      StepKey key;
      key.run = run.run();
      key.step = step.step();
      key.incarnation = step.incarnation();
      store
          ->ForEachRecord(key,
                          [](const v1::Record&) { return absl::OkStatus(); })
          .IgnoreError();
    }
  }
  v1::VerifyRequest request;
  request.set_read_data(true);
  store->Verify(request, {}).IgnoreError();
}

// Takes numbers off the front of the input.
class Input {
 public:
  explicit Input(absl::string_view data) : data_(data) {}
  bool empty() const { return data_.empty(); }
  uint64_t Number(uint64_t below) {
    uint64_t value = 0;
    for (int i = 0; i < 3 && !data_.empty(); ++i) {
      value = value << 8 | static_cast<unsigned char>(data_[0]);
      data_.remove_prefix(1);
    }
    return value % below;
  }

 private:
  absl::string_view data_;
};

}  // namespace

void Frame(absl::string_view data) {
  v1::UploadFrame frame;
  if (!frame.ParseFromArray(data.data(), static_cast<int>(data.size()))) return;
  const FrameSize size = SizeOf(frame, frame.ByteSizeLong());
  if (!CheckPlace(frame, 1).ok() || !CheckContent(frame, size).ok() ||
      frame.sequence() != 1)
    return;
  testing::FaultFileSystem fs;
  const ManualClock clock;
  const auto store = Store::Open(Options(), &fs, &clock);
  Require(store.ok(), "a store opens");
  const v1::Identity identity = Someone();
  const absl::Status status = (*store)->Commit({{&identity, &frame}});
  Require(status.ok() || absl::IsInvalidArgument(status),
          "a frame that admission lets in cannot break the store");
  ReadAll(store->get());
}

void ChunkAssembly(absl::string_view data) {
  testing::FaultFileSystem fs;
  const ManualClock clock;
  auto store = Store::Open(Options(), &fs, &clock);
  Require(store.ok(), "a store opens");
  // Two payloads, sent by two ranks in any pieces, some of them wrong.
  std::vector<std::string> payloads = {std::string(600, 'a'),
                                       std::string(2000, 'b')};
  for (size_t i = 0; i < payloads[1].size(); ++i)
    payloads[1][i] = static_cast<char>(i * 7);
  v1::Identity identities[2] = {Someone(), Someone()};
  identities[1].set_rank(2);
  identities[1].set_incarnation(2);
  uint64_t sequences[2] = {0, 0};
  Input input(data);
  for (int i = 0; i < 64 && !input.empty(); ++i) {
    const uint64_t rank = input.Number(2);
    const std::string& payload = payloads[input.Number(2)];
    v1::UploadFrame frame;
    frame.set_sequence(++sequences[rank]);
    v1::PayloadChunk* const chunk = frame.mutable_chunk();
    chunk->set_digest(DigestOf(payload));
    chunk->set_length_bytes(payload.size());
    const uint64_t offset = input.Number(payload.size());
    const uint64_t size = 1 + input.Number(payload.size() - offset);
    chunk->set_offset_bytes(offset);
    std::string bytes = payload.substr(offset, size);
    const uint64_t fault = input.Number(16);
    if (fault == 0) bytes[0] = static_cast<char>(bytes[0] + 1);
    if (fault == 1) chunk->set_length_bytes(input.Number(5000));
    chunk->set_data(bytes);
    chunk->set_crc32c(Crc32c(bytes));
    const absl::Status status = (*store)->Commit({{&identities[rank], &frame}});
    if (!status.ok()) {
      Require(absl::IsInvalidArgument(status), "a bad chunk is refused");
      --sequences[rank];
    }
    if (input.Number(8) == 0) {
      store->reset();
      store = Store::Open(Options(), &fs, &clock);
      Require(store.ok(), "a store opens again");
    }
  }
  for (const std::string& payload : payloads) {
    if (!(*store)->HasPayload("run", DigestOf(payload), payload.size()))
      continue;
    std::string out;
    const absl::Status status = (*store)->ReadPayload(
        "run", DigestOf(payload), payload.size(), [&](absl::string_view piece) {
          out.append(piece.data(), piece.size());
          return absl::OkStatus();
        });
    Require(status.ok() && out == payload, "what is whole is right");
  }
}

void SegmentRecovery(absl::string_view data) {
  testing::FaultFileSystem fs;
  const ManualClock clock;
  // A process that died: an index, and behind what it synced a segment.
  { const auto store = Store::Open(Options(), &fs, &clock); }
  {
    const auto index = OpenLevelDbIndex({"/d/index", 64 << 10, 64 << 10, &fs});
    std::unique_ptr<IndexBatch> batch = (*index)->NewBatch();
    batch->Delete(keys::kClean);
    (void)(*index)->Write(std::move(batch), true);
    auto file = fs.OpenForWrite("/d/segments/0000000001.seg",
                                FileSystem::OpenMode::kCreateNew);
    (void)(*file)->Append(data);
  }
  auto store = Store::Open(Options(), &fs, &clock);
  Require(store.ok(), "any segment file is survived");
  Require(*fs.FileSize("/d/segments/0000000001.seg") <= data.size(),
          "recovery only cuts");
  ReadAll(store->get());
}

void IndexValue(absl::string_view data) {
  if (data.size() < 2) return;
  testing::FaultFileSystem fs;
  const ManualClock clock;
  { const auto store = Store::Open(Options(), &fs, &clock); }
  {
    const auto index = OpenLevelDbIndex({"/d/index", 64 << 10, 64 << 10, &fs});
    Require(index.ok(), "an index opens");
    const absl::string_view value = data.substr(1);
    const std::string digest(16, 'd');
    const std::string rows[] = {
        keys::Run("run"), keys::Incarnation(1, 1), keys::Step(1, 1, 1),
        keys::Record(1, 1, 1, 1), keys::Payload(1, digest, 8),
        keys::Chunk(1, digest, 8, 0), keys::Plan("run"),
        keys::Reference(1, digest, 8, 1, 1), keys::DeletedStep(1, 1, 1),
        keys::Tombstone("run"),
        // A key of any shape.
        std::string(value.substr(0, std::min<size_t>(value.size(), 40)))};
    std::unique_ptr<IndexBatch> batch = (*index)->NewBatch();
    const size_t at = static_cast<unsigned char>(data[0]) % std::size(rows);
    if (rows[at].empty()) return;
    if (at > 0) {
      v1::RunRow run;
      run.set_id(1);
      batch->Put(keys::Run("run"), run.SerializeAsString());
    }
    batch->Put(rows[at], value);
    Require((*index)->Write(std::move(batch), true).ok(), "a write");
  }
  auto store = Store::Open(Options(), &fs, &clock);
  if (!store.ok()) return;  // refused with a status, which is all we ask
  ReadAll(store->get());
  (*store)->LoadPlan("run").IgnoreError();
  (*store)->CollectGarbage({}).IgnoreError();
}

void DumpName(absl::string_view data) {
  const std::string name = EscapeFileName(data, ".pt");
  Require(!name.empty() && name.size() <= 255, "a name has 1 to 255 bytes");
  Require(name.find('/') == std::string::npos &&
              name.find('\0') == std::string::npos && name != "." &&
              name != "..",
          "a name stays in its directory");
}

void SpoolFile(absl::string_view data) {
  testing::FaultFileSystem fs;
  (void)fs.CreateDirectories("/s");
  for (const char* name :
       {"/s/0000000000000001.lock", "/s/0000000000000001.00000000.spool"}) {
    auto file = fs.OpenForWrite(name, FileSystem::OpenMode::kCreateNew);
    if (absl::string_view(name).find("spool") != absl::string_view::npos)
      (void)(*file)->Append(data);
  }
  int passed_over = 0;
  for (const auto& orphan : OrphanSpool::Find(
           "/s", &fs, [](const std::string&) { return true; }, &passed_over)) {
    while (orphan->Next().ok()) {
    }
    orphan->Remove().IgnoreError();
  }
}

void SealedObject(absl::string_view data) {
  testing::FaultFileSystem fs;
  DirectoryObjectStore store(&fs, "/o");
  const auto read = [&](const std::string& object) {
    Require(store.Put("k", object, ObjectStore::PutMode::kReplace).ok(),
            "a put");
    if (const auto index = ReadRecordsIndex(&store, "k", object.size());
        index.ok()) {
      for (const v1::SealedMember& member : index->members())
        ReadSealedRecords(&store, "k", member, [](const v1::Record&) {
          return absl::OkStatus();
        }).IgnoreError();
    }
    const auto pack = ReadPackIndex(&store, "k", object.size());
    if (!pack.ok()) return;
    ReadAhead packs(&store);
    for (const v1::SealedPayload& payload : pack->payloads()) {
      uint64_t bytes = 0;
      const absl::Status status = ReadSealedPayload(
          &packs, "k", object.size(), payload, [&](absl::string_view piece) {
            bytes += piece.size();
            return absl::OkStatus();
          });
      Require(!status.ok() || bytes == payload.length_bytes(),
              "a payload has its length");
    }
  };
  read(std::string(data));
  // Past the checksum: whatever the index says.
  for (const absl::string_view magic : {absl::string_view("RPSREC\0\1", 8),
                                        absl::string_view("RPSPAK\0\1", 8)}) {
    std::string object(magic);
    object.append(data.data(), data.size());
    object.append(data.data(), data.size());
    const uint64_t index_bytes = data.size(), bytes = object.size() + 28;
    const uint32_t checksum = Crc32c(data);
    object.append(reinterpret_cast<const char*>(&index_bytes), 8);
    object.append(reinterpret_cast<const char*>(&bytes), 8);
    object.append(reinterpret_cast<const char*>(&checksum), 4);
    object.append(magic.data(), magic.size());
    read(object);
  }
  sealed::DecodeEntry(data).status().IgnoreError();
  std::string entry("RPSLOG\1\n");
  const uint32_t checksum = Crc32c(data);
  entry.append(reinterpret_cast<const char*>(&checksum), 4);
  entry.append(data.data(), data.size());
  const auto decoded = sealed::DecodeEntry(entry);
  Require(!decoded.ok() || !decoded->has_records() ||
              sealed::IsHexName(decoded->records().name()),
          "an entry names objects");
}

void S3Answer(absl::string_view data) {
  const S3Error error = ParseS3Error(data);
  Require(error.code.size() <= kMaxS3XmlBytes, "a code is bounded");
  const auto list = ParseS3List(data);
  Require(!list.ok() || list->objects.size() <= data.size(),
          "a list is no longer than its text");
  ParseS3UploadId(data).status().IgnoreError();
}

}  // namespace rankprobe::fuzz
