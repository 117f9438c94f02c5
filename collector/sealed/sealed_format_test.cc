// SPDX-License-Identifier: Apache-2.0
// Bytes of objects and entries: reproducible, readable, damaged.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/object_store/directory_object_store.h"
#include "collector/object_store/testing/put_modes.h"
#include "collector/sealed/pack_object.h"
#include "collector/sealed/records_object.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "common/testing/source_tree.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::FaultFileSystem;
using testing::RandomBytes;

using testing::kReplace;

std::string ReadWhole(FileSystem* files, const std::string& path) {
  std::string bytes(*files->FileSize(path), '\0');
  EXPECT_TRUE((*files->OpenForRead(path))->Read(0, absl::MakeSpan(bytes)).ok());
  return bytes;
}

v1::Record RecordOf(uint64_t order, const std::string& entry) {
  v1::Record record;
  record.set_order(order);
  record.mutable_call()->set_entry(entry);
  return record;
}

struct Written {
  v1::SealedObject object;
  std::string bytes;
};

// Writes two steps, one of them in several frames.
Written WriteRecords() {
  FaultFileSystem files;
  auto writer = RecordsObjectWriter::Create(&files, "/r");
  EXPECT_TRUE((*writer)->BeginMember(3, 77).ok());
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_TRUE((*writer)->Add(RecordOf(i, absl::StrCat("call", i))).ok());
  EXPECT_TRUE((*writer)->BeginMember(4, 77).ok());
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        (*writer)
            ->Add(RecordOf(i, absl::BytesToHexString(RandomBytes(i, 2000)) +
                                  std::string(600000, 'x')))
            .ok());
  }
  Written written;
  written.object = *(*writer)->Finish();
  written.bytes = ReadWhole(&files, "/r");
  return written;
}

Written WritePack() {
  FaultFileSystem files;
  auto writer = PackObjectWriter::Create(&files, "/p");
  // Divided in two ways: one frame each.
  for (const size_t cut : {100u, 1000u}) {
    const std::string data = RandomBytes(cut, 3000) + std::string(3000, 'z');
    (*writer)->BeginPayload(DigestOf(data), data.size(), DigestOf(data));
    for (size_t at = 0; at < data.size(); at += cut)
      EXPECT_TRUE((*writer)->AddData(data.substr(at, cut)).ok());
    EXPECT_TRUE(*(*writer)->EndPayload());
  }
  (*writer)->BeginPayload(DigestOf("short"), 10, DigestOf("short"));
  EXPECT_TRUE((*writer)->AddData("short").ok());
  EXPECT_FALSE(*(*writer)->EndPayload());
  Written written;
  written.object = *(*writer)->Finish();
  written.bytes = ReadWhole(&files, "/p");
  return written;
}

std::vector<std::string> ReadRecords(ObjectStore* store, uint64_t bytes,
                                     absl::Status* status) {
  std::vector<std::string> out;
  const auto index = ReadRecordsIndex(store, "r", bytes);
  *status = index.status();
  if (!index.ok()) return out;
  for (const v1::SealedMember& member : index->members()) {
    *status = ReadSealedRecords(store, "r", member, [&](const v1::Record& r) {
      out.push_back(
          absl::StrCat(member.step(), " ", r.order(), " ", r.call().entry()));
      return absl::OkStatus();
    });
    if (!status->ok()) return out;
  }
  return out;
}

std::vector<std::string> ReadPack(ObjectStore* store, uint64_t bytes,
                                  absl::Status* status) {
  std::vector<std::string> out;
  ReadAhead packs(store);
  const auto index = ReadPackIndex(store, "p", bytes);
  *status = index.status();
  if (!index.ok()) return out;
  for (const v1::SealedPayload& payload : index->payloads()) {
    std::string data;
    *status = ReadSealedPayload(&packs, "p", bytes, payload,
                                [&](absl::string_view piece) {
                                  data.append(piece.data(), piece.size());
                                  return absl::OkStatus();
                                });
    if (!status->ok()) return out;
    EXPECT_EQ(payload.digest(), DigestOf(data));
    out.push_back(data);
  }
  return out;
}

TEST(SealedFormat, IsTheSameBytesEachTime) {
  EXPECT_TRUE(WriteRecords().bytes == WriteRecords().bytes);
  EXPECT_TRUE(WritePack().bytes == WritePack().bytes);
  EXPECT_EQ(WriteRecords().object.name(), WriteRecords().object.name());
  EXPECT_TRUE(sealed::IsHexName(WritePack().object.name()));
}

TEST(SealedFormat, IsReadBack) {
  FaultFileSystem files;
  DirectoryObjectStore store(&files, "/d");
  const Written records = WriteRecords(), pack = WritePack();
  EXPECT_EQ(records.object.bytes(), records.bytes.size());
  EXPECT_EQ(pack.object.payload_bytes(), 12000u);
  // The long texts are in separate frames, compressed.
  EXPECT_LT(records.bytes.size(), 100000u);
  ASSERT_TRUE(store.Put("r", records.bytes, kReplace).ok());
  ASSERT_TRUE(store.Put("p", pack.bytes, kReplace).ok());
  absl::Status status;
  const std::vector<std::string> read =
      ReadRecords(&store, records.bytes.size(), &status);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(read.size(), 6u);
  EXPECT_EQ(read[1], "3 1 call1");
  EXPECT_EQ(ReadPack(&store, pack.bytes.size(), &status).size(), 2u);
  ASSERT_TRUE(status.ok()) << status;
}

// One flipped bit in each byte: the result is correct or an error.
TEST(SealedFormat, NeverGivesOtherBytesWhereItIsDamaged) {
  const Written records = WriteRecords(), pack = WritePack();
  FaultFileSystem files;
  DirectoryObjectStore store(&files, "/d");
  absl::Status status;
  ASSERT_TRUE(store.Put("r", records.bytes, kReplace).ok());
  ASSERT_TRUE(store.Put("p", pack.bytes, kReplace).ok());
  const auto good_records = ReadRecords(&store, records.bytes.size(), &status);
  const auto good_pack = ReadPack(&store, pack.bytes.size(), &status);
  int refused = 0, tried = 0;
  const auto sweep = [&](const Written& written, const char* key,
                         const auto& read, const auto& good) {
    // Every byte of head and index, some of the frames.
    for (size_t at = 0; at < written.bytes.size();
         at += at < 100 || at + 600 > written.bytes.size() ? 1 : 97) {
      std::string bytes = written.bytes;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      ASSERT_TRUE(store.Put(key, bytes, kReplace).ok());
      const auto got = read(&store, bytes.size(), &status);
      ++tried;
      if (status.ok()) {
        // The magic at the beginning is only for people.
        EXPECT_LT(at, 8u);
        EXPECT_TRUE(got == good) << key << " " << at;
      } else {
        EXPECT_TRUE(absl::IsDataLoss(status)) << key << " " << at << status;
        ++refused;
      }
    }
  };
  sweep(records, "r", ReadRecords, good_records);
  sweep(pack, "p", ReadPack, good_pack);
  EXPECT_GE(refused, tried - 16);
}

TEST(SealedFormat, KnowsHalfAnObject) {
  const Written records = WriteRecords();
  FaultFileSystem files;
  DirectoryObjectStore store(&files, "/d");
  absl::Status status;
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{27}, size_t{28}, size_t{36},
        records.bytes.size() / 2, records.bytes.size() - 1}) {
    ASSERT_TRUE(store.Put("r", records.bytes.substr(0, bytes), kReplace).ok());
    // Whatever size the entry declares.
    for (const size_t said : {bytes, records.bytes.size()}) {
      ReadRecords(&store, said, &status);
      EXPECT_TRUE(absl::IsDataLoss(status)) << bytes << " " << status;
    }
  }
}

TEST(SealedFormat, EntriesAreChecked) {
  v1::SealedLogEntry entry;
  entry.set_format(sealed::kFormat);
  entry.set_run("run");
  entry.mutable_records()->set_name(std::string(32, 'a'));
  const std::string bytes = sealed::EncodeEntry(entry);
  EXPECT_TRUE(sealed::DecodeEntry(bytes).ok());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    EXPECT_TRUE(absl::IsDataLoss(sealed::DecodeEntry(damaged).status())) << at;
    EXPECT_FALSE(sealed::DecodeEntry(bytes.substr(0, at)).ok()) << at;
  }
  entry.set_format(3);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      sealed::DecodeEntry(sealed::EncodeEntry(entry)).status()));
  entry.set_format(1);
  entry.mutable_records()->set_name("../../x");
  EXPECT_FALSE(sealed::DecodeEntry(sealed::EncodeEntry(entry)).ok());
}

TEST(SealedFormat, KeysAreKeys) {
  const std::string run = sealed::RunKey("a run / with\nany name");
  EXPECT_TRUE(sealed::IsHexName(run));
  EXPECT_NE(run, sealed::RunKey("another"));
  // Collectors of all versions must use the same key.
  EXPECT_EQ(sealed::RunKey("training"), sealed::RunKey("training"));
  const std::string shard(32, 'b');
  const std::string key = sealed::LogKey(run, shard, 12);
  EXPECT_TRUE(CheckObjectKey(key).ok());
  const auto place = sealed::ParseLogKey(run, key);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->shard, shard);
  EXPECT_EQ(place->sequence, 12u);
  EXPECT_FALSE(sealed::ParseLogKey(run, key + "0").has_value());
  EXPECT_FALSE(
      sealed::ParseLogKey(run, sealed::LogKey(run, shard, 0)).has_value());
  EXPECT_FALSE(sealed::ParseLogKey(shard, key).has_value());
}

// Files of this format version must stay readable forever. They are made with
// RANKPROBE_WRITE_GOLDEN=1.
TEST(SealedFormat, ReadsTheGoldenFiles) {
  const auto slurp = [](const std::string& name) {
    std::ifstream file(absl::StrCat(testing::GoldenDir(), "/sealed/", name),
                       std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  };
  if (std::getenv("RANKPROBE_WRITE_GOLDEN") != nullptr) {
    std::ofstream(absl::StrCat(testing::GoldenDir(), "/sealed/records"),
                  std::ios::binary)
        << WriteRecords().bytes;
    std::ofstream(absl::StrCat(testing::GoldenDir(), "/sealed/pack"),
                  std::ios::binary)
        << WritePack().bytes;
  }
  FaultFileSystem files;
  DirectoryObjectStore store(&files, "/d");
  const std::string records = slurp("records"), pack = slurp("pack");
  ASSERT_TRUE(store.Put("r", records, kReplace).ok());
  ASSERT_TRUE(store.Put("p", pack, kReplace).ok());
  absl::Status status;
  const auto read = ReadRecords(&store, records.size(), &status);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(read.size(), 6u);
  EXPECT_EQ(read[2], "3 2 call2");
  EXPECT_EQ(ReadPack(&store, pack.size(), &status).size(), 2u);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace rankprobe
