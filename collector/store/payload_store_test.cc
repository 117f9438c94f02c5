// SPDX-License-Identifier: Apache-2.0
#include "collector/store/payload_store.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "collector/store/keys.h"
#include "collector/store/segment_header.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FaultFileSystem;

class PayloadStoreTest : public testing::TempDirTest {
 protected:
  std::unique_ptr<PayloadStore> Open(uint64_t segment_bytes,
                                     bool compress = false) {
    auto store = PayloadStore::Open(
        {root_ + "/segments", segment_bytes, compress}, file_system_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  static ChunkToAppend Chunk(absl::string_view data, absl::string_view digest) {
    return {1, digest, data.size(), 0, data, Crc32c(data)};
  }
};

TEST_F(PayloadStoreTest, RollsOverToNewSegments) {
  std::unique_ptr<PayloadStore> store = Open(1000);
  std::vector<std::string> data;
  std::vector<ChunkToAppend> chunks;
  const std::string digest(16, 'd');
  for (int i = 0; i < 20; ++i)
    data.push_back(std::string(300, static_cast<char>('a' + i)));
  for (const std::string& d : data) chunks.push_back(Chunk(d, digest));
  const auto rows = store->Append(chunks);
  ASSERT_TRUE(rows.ok());
  EXPECT_GT(rows->back().segment(), 3u);
  for (size_t i = 0; i < data.size(); ++i) {
    std::string out;
    ASSERT_TRUE(store->Read((*rows)[i], &out).ok());
    EXPECT_EQ(out, data[i]);
  }
  ASSERT_TRUE(store->Sync().ok());
}

// The newest synced bytes stay in the system's cache, in complete segments or
// parts; older ones are dropped once. A removed segment is not kept open.
TEST(PayloadStoreCacheTest, SyncedBytesAreForgottenFromTheOldestOn) {
  FaultFileSystem fs;
  PayloadStore::Options options{
      .directory = "/segments", .segment_bytes = 2000, .cached_bytes = 1500};
  auto opened = PayloadStore::Open(options, &fs);
  ASSERT_TRUE(opened.ok()) << opened.status();
  PayloadStore& store = **opened;
  const std::string digest(16, 'd'), data(400, 'x');
  const ChunkToAppend chunk = {1, digest, data.size(), 0, data, Crc32c(data)};
  const auto append_and_sync = [&] {
    EXPECT_TRUE(store.Append({chunk}).ok());
    EXPECT_TRUE(store.Sync().ok());
  };
  const auto check = [&](uint64_t kept) {
    uint64_t stored = 0;
    for (const auto& segment : store.Segments()) stored += segment.size_bytes;
    // How far each segment was dropped from the cache: without a gap, and
    // oldest first.
    std::map<std::string, uint64_t> ends;
    uint64_t forgotten = 0;
    for (const FaultFileSystem::Forgotten& one : fs.forgotten()) {
      EXPECT_EQ(one.offset, ends[one.path]);
      EXPECT_GT(one.bytes, 0u);
      ends[one.path] += one.bytes;
      forgotten += one.bytes;
      EXPECT_EQ(one.path, ends.rbegin()->first);
    }
    EXPECT_EQ(stored - forgotten, kept);
  };
  const uint64_t frame = 400 + SegmentHeader::kBytes;
  for (uint64_t i = 1; i <= 12; ++i) {
    append_and_sync();
    check(std::min<uint64_t>(i * frame, 1500));
  }
  ASSERT_TRUE(store.Sync().ok());
  check(1500);
  // Several segments in one sync.
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(store.Append({chunk}).ok());
  ASSERT_TRUE(store.Sync().ok());
  check(1500);
  // Nothing more is dropped for the removed one.
  const size_t before = fs.forgotten().size();
  for (const auto& segment : store.Segments())
    if (segment.closed) ASSERT_TRUE(store.Remove(segment.number).ok());
  for (int i = 0; i < 8; ++i) append_and_sync();
  std::set<std::string> after;
  for (size_t i = before; i < fs.forgotten().size(); ++i)
    after.insert(fs.forgotten()[i].path);
  EXPECT_FALSE(after.empty());
  for (const std::string& path : after) EXPECT_TRUE(fs.Exists(path)) << path;
}

TEST_F(PayloadStoreTest, CompressesWhatBecomesSmaller) {
  const std::string digest(16, 'd');
  const std::string zeros(1 << 20, '\0');
  std::string noise(1 << 20, '\0');
  std::mt19937 random(7);
  for (char& c : noise) c = static_cast<char>(random());
  std::vector<v1::ChunkRow> rows;
  {
    std::unique_ptr<PayloadStore> store = Open(uint64_t{1} << 30, true);
    const std::vector<ChunkToAppend> chunks = {
        Chunk(zeros, digest), Chunk(noise, digest), Chunk("abc", digest)};
    rows = *store->Append(chunks);
  }
  EXPECT_GT(rows[0].compressed_bytes(), 0u);
  EXPECT_LT(rows[0].compressed_bytes(), zeros.size() / 100);
  EXPECT_EQ(rows[1].compressed_bytes(), 0u);
  EXPECT_EQ(rows[2].compressed_bytes(), 0u);
  // Any store reads them, whether it compresses or not.
  std::unique_ptr<PayloadStore> store = Open(uint64_t{1} << 30);
  EXPECT_EQ(store->recovery().torn_bytes_dropped, 0u);
  std::string out;
  ASSERT_TRUE(store->Read(rows[0], &out).ok());
  EXPECT_TRUE(out == zeros);
  ASSERT_TRUE(store->Read(rows[1], &out).ok());
  EXPECT_TRUE(out == noise);
  ASSERT_TRUE(store->Read(rows[2], &out).ok());
  EXPECT_EQ(out, "abc");
  // A row that claims another length is refused, however large.
  rows[0].set_length_bytes(uint64_t{1} << 60);
  EXPECT_EQ(store->Read(rows[0], &out).code(), absl::StatusCode::kDataLoss);
}

TEST_F(PayloadStoreTest, RowsBeyondTheEndAreDataLoss) {
  std::unique_ptr<PayloadStore> store = Open(1 << 20);
  const std::string digest(16, 'd');
  const ChunkToAppend chunk = Chunk("hello", digest);
  auto rows = store->Append(absl::MakeConstSpan(&chunk, 1));
  ASSERT_TRUE(rows.ok());
  v1::ChunkRow row = (*rows)[0];
  std::string out;
  row.set_length_bytes(UINT64_MAX);
  EXPECT_EQ(store->Read(row, &out).code(), absl::StatusCode::kDataLoss);
  row = (*rows)[0];
  row.set_segment(99);
  EXPECT_EQ(store->Read(row, &out).code(), absl::StatusCode::kDataLoss);
}

TEST_F(PayloadStoreTest, GarbageAtTheEndIsCutOff) {
  const std::string digest(16, 'd');
  v1::ChunkRow row;
  {
    std::unique_ptr<PayloadStore> store = Open(1 << 20);
    const ChunkToAppend chunk = Chunk("hello", digest);
    row = (*store->Append(absl::MakeConstSpan(&chunk, 1)))[0];
  }
  auto file = file_system_->OpenForWrite(root_ + "/segments/0000000001.seg",
                                         FileSystem::OpenMode::kAppend);
  ASSERT_TRUE((*file)->Append("RPS1 half a header and no more").ok());
  ASSERT_TRUE((*file)->Close().ok());
  std::unique_ptr<PayloadStore> store = Open(1 << 20);
  EXPECT_EQ(store->recovery().torn_bytes_dropped, 30u);
  std::string out;
  ASSERT_TRUE(store->Read(row, &out).ok());
  EXPECT_EQ(out, "hello");
}

// docs/storage.md, "On disk": the worked example.
TEST(KeysTest, RecordKeyIsAsDocumented) {
  EXPECT_EQ(absl::BytesToHexString(keys::Record(1, 17, 0x0123456789abcdef, 5)),
            "63"
            "00000001"
            "0000000000000011"
            "0123456789abcdef"
            "0000000000000005");
}

}  // namespace
}  // namespace rankprobe
