// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/reference_source.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class ReferenceSourceTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    store_ = OpenStore();
  }
  void TearDown() override {
    store_.reset();
    TempDirTest::TearDown();
  }

  static v1::CallPhase* Add(v1::RecordBatch* batch, const std::string& entry,
                            v1::CallKind kind = v1::CALL_KIND_API_FORWARD) {
    v1::Record* record = batch->add_records();
    record->set_order(static_cast<uint64_t>(batch->records_size() - 1));
    record->mutable_call()->set_entry(entry);
    record->mutable_call()->set_kind(kind);
    return record->mutable_call();
  }
  static void Tensor(v1::ValueList* list, uint32_t crc32) {
    v1::TensorSummary* tensor = list->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->add_shape(2);
    tensor->mutable_checksum()->set_crc32(crc32);
  }

  void Commit(int64_t rank, uint64_t incarnation, uint32_t crc32,
              int calls = 1) {
    testing::Frames frames(testing::MakeIdentity("run", rank, incarnation));
    v1::RecordBatch* batch = frames.AddBatch(5);
    for (int i = 0; i < calls; ++i) {
      v1::CallPhase* call = Add(batch, absl::StrCat("a.", i, ".forward"));
      call->mutable_input_args()->add_items()->mutable_scalar()->set_i(1);
      Tensor(call->mutable_input_args(), 7);
      Tensor(call->mutable_output(), crc32);
    }
    Tensor(Add(batch, "a.0.backward", v1::CALL_KIND_API_BACKWARD)
               ->mutable_output(),
           9);
    ASSERT_TRUE(store_->OpenIncarnation(frames.identity()).ok());
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
    clock_.Advance(absl::Seconds(1));
  }

  absl::StatusOr<std::vector<v1::ReferenceChunk>> Read(
      std::optional<int64_t> rank, int64_t step = 5,
      const std::string& run = "run", size_t max_bytes = kMaxReferenceBytes) {
    v1::ReferenceRequest request;
    request.set_run(run);
    request.set_step(step);
    if (rank.has_value()) request.set_rank(*rank);
    return ReadReference(store_.get(), request, max_bytes);
  }

  std::unique_ptr<Store> store_;
};

TEST_F(ReferenceSourceTest, ForwardsOfTheNewestProcessOfTheRank) {
  Commit(0, 100, 1);
  Commit(0, 101, 2);
  Commit(1, 102, 3);
  const auto chunks = Read(0);
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  ASSERT_EQ(chunks->size(), 1u);
  ASSERT_EQ((*chunks)[0].entries_size(), 1);
  const v1::ReferenceEntry& entry = (*chunks)[0].entries(0);
  EXPECT_EQ(entry.entry(), "a.0.forward");
  ASSERT_EQ(entry.tensors_size(), 2);
  EXPECT_FALSE(entry.tensors(0).output());
  EXPECT_EQ(entry.tensors(0).position(), 1u);
  EXPECT_EQ(entry.tensors(0).crc32(), 7u);
  EXPECT_TRUE(entry.tensors(1).output());
  EXPECT_EQ(entry.tensors(1).crc32(), 2u);
}

TEST_F(ReferenceSourceTest, SaysWhatIsNotThere) {
  Commit(0, 100, 1);
  EXPECT_TRUE(absl::IsNotFound(Read(0, 6).status()));
  EXPECT_TRUE(absl::IsNotFound(Read(1).status()));
  EXPECT_TRUE(absl::IsNotFound(Read(std::nullopt).status()));
  EXPECT_TRUE(absl::IsNotFound(Read(0, 5, "other").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Read(0, -1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Read(0, 5, "").status()));
  EXPECT_TRUE(absl::IsResourceExhausted(Read(0, 5, "run", 10).status()));
}

TEST_F(ReferenceSourceTest, OneProcessWithoutARankIsFoundTwoAreNot) {
  Commit(-1, 100, 1);
  EXPECT_TRUE(Read(std::nullopt).ok());
  Commit(-1, 101, 1);
  EXPECT_TRUE(absl::IsNotFound(Read(std::nullopt).status()));
}

TEST_F(ReferenceSourceTest, ALargeStepComesInPieces) {
  Commit(0, 100, 1, 10000);
  const auto chunks = Read(0);
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  EXPECT_GT(chunks->size(), 1u);
  int entries = 0;
  for (const v1::ReferenceChunk& chunk : *chunks) {
    EXPECT_LT(chunk.ByteSizeLong(), 300u << 10);
    entries += chunk.entries_size();
  }
  EXPECT_EQ(entries, 10000);
}

}  // namespace
}  // namespace rankprobe
