// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/read_ahead.h"

#include <map>
#include <memory>
#include <string>

#include "collector/object_store/testing/put_modes.h"
#include "collector/sealed/testing/sealer_fixture.h"

namespace rankprobe {
namespace {

using testing::FaultObjectStore;
using testing::Frames;
using testing::kReplace;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class ReadingAhead : public ::testing::Test {
 protected:
  void Put(const std::string& key, size_t bytes) {
    ASSERT_TRUE(objects_.Put(key, RandomBytes(1, bytes), kReplace).ok());
    size_ = bytes;
  }
  // Expects the correct bytes with this number of requests.
  void Expect(const std::string& key, uint64_t offset, uint64_t bytes,
              uint64_t requests) {
    const uint64_t before = objects_.calls();
    const auto got = read_.Get(key, size_, offset, bytes);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == objects_.objects().at(key).substr(offset, bytes));
    EXPECT_EQ(objects_.calls() - before, requests) << offset;
  }

  FaultObjectStore objects_;
  ReadAhead read_{&objects_};
  uint64_t size_ = 0;
};

TEST_F(ReadingAhead, PartsInARowShareRequests) {
  Put("a", 40 << 20);
  const uint64_t before = objects_.calls();
  for (uint64_t at = 0; at + 1000 <= size_; at += 1000) {
    const auto got = read_.Get("a", size_, at, 1000);
    ASSERT_TRUE(got.ok());
    ASSERT_TRUE(*got == objects_.objects().at("a").substr(at, 1000));
    ASSERT_LE(read_.kept_bytes(), 32u << 20);
  }
  // 42,000 parts: one, then 256 KiB, 512 KiB .. 8 MiB.
  EXPECT_LE(objects_.calls() - before, 12u);
}

TEST_F(ReadingAhead, APartElsewhereCostsWhatItIs) {
  Put("a", 8 << 20);
  Expect("a", 5 << 20, 1000, 1);
  EXPECT_EQ(read_.kept_bytes(), 1000u);
  Expect("a", 100, 1000, 1);
  EXPECT_EQ(read_.kept_bytes(), 2000u);
  // A gap is read over, and the sequence continues.
  Expect("a", 5000, 1000, 1);
  Expect("a", 6000, 200000, 0);
  // Across the end of the cached range, up to the object's end.
  Expect("a", 5000 + (256 << 10) - 10, 20, 1);
  Expect("a", (5 << 20) + 100, 10, 0);
  Expect("a", size_ - 10, 10, 1);
  // Large parts are not cached.
  const uint64_t kept = read_.kept_bytes();
  Expect("a", 0, 5 << 20, 1);
  EXPECT_EQ(read_.kept_bytes(), kept);
}

TEST_F(ReadingAhead, SeveralRowsAreReadAtOnce) {
  Put("a", 30 << 20);
  ASSERT_TRUE(objects_.Put("b", RandomBytes(1, size_), kReplace).ok());
  const uint64_t before = objects_.calls();
  for (uint64_t at = 0; at + 1000 <= 10 << 20; at += 1000) {
    for (const auto& [key, offset] :
         std::map<std::string, uint64_t>{{"a", at}, {"b", at + (20 << 20)}}) {
      const auto got = read_.Get(key, size_, offset, 1000);
      ASSERT_TRUE(got.ok());
      ASSERT_TRUE(*got == objects_.objects().at(key).substr(offset, 1000));
    }
  }
  EXPECT_LE(objects_.calls() - before, 20u);
  // Memory does not grow with the number of sequences, nor with their length.
  for (int row = 0; row < 6; ++row) {
    ASSERT_TRUE(
        objects_.Put(absl::StrCat("r", row), RandomBytes(1, 14 << 20), kReplace)
            .ok());
  }
  for (uint64_t at = 0; at + 100000 <= 14 << 20; at += 100000) {
    for (int row = 0; row < 6; ++row) {
      ASSERT_TRUE(read_.Get(absl::StrCat("r", row), 14 << 20, at, 1000).ok());
      ASSERT_LE(read_.kept_bytes(), 32u << 20);
    }
  }
  for (uint64_t row = 0; row < 100; ++row) {
    for (uint64_t at = 0; at < 1 << 20; at += 50000) {
      ASSERT_TRUE(
          read_.Get(absl::StrCat("a", row), size_, at, 1000).status().code() ==
          absl::StatusCode::kNotFound);
      ASSERT_TRUE(read_.Get("a", size_, (row % 28 << 20) + at, 1000).ok());
      ASSERT_LE(read_.kept_bytes(), 32u << 20);
    }
  }
}

TEST_F(ReadingAhead, WhatIsShorterThanItWasIsReadToItsEnd) {
  Put("a", 100000);
  size_ = 1 << 20;
  Expect("a", 0, 1000, 1);
  Expect("a", 1000, 1000, 2);
  EXPECT_TRUE(absl::IsOutOfRange(read_.Get("a", size_, 200000, 10).status()));
}

class SmallPayloads : public SealerTest {
 protected:
  static constexpr int kPayloads = 3000;

  // Seals one step with that many payloads.
  void SealStep() {
    const std::unique_ptr<Store> store = OpenStore();
    Frames frames(MakeIdentity("run", 0, 7));
    for (uint64_t i = 0; i < kPayloads; ++i)
      frames.AddPayload(RandomBytes(i + 1, 400 + i % 7));
    v1::RecordBatch* const batch = frames.AddBatch(1);
    batch->add_records()->mutable_step_begin()->set_task("tensor");
    for (uint64_t i = 0; i < kPayloads; ++i) {
      v1::Record* const record = batch->add_records();
      record->set_order(i + 1);
      v1::PayloadRef* const payload = record->mutable_call()
                                          ->mutable_output()
                                          ->add_items()
                                          ->mutable_tensor()
                                          ->mutable_payload();
      payload->set_digest(testing::DigestOf(RandomBytes(i + 1, 400 + i % 7)));
      payload->set_length_bytes(400 + i % 7);
    }
    v1::Record* const end = batch->add_records();
    end->set_order(kPayloads + 1);
    end->mutable_step_end()->set_call_phases(kPayloads);
    end->mutable_step_end()->set_payloads(kPayloads);
    Commit(store.get(), frames);
    expected_ = See(store.get(), "run");
    const auto sealer = OpenSealer(store.get(), &objects_);
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
    for (auto& [key, bytes] : *objects_.mutable_objects()) {
      if (absl::StrContains(key, "/packs/")) pack_ = &bytes;
    }
    ASSERT_TRUE(pack_ != nullptr);
  }
  absl::Status Read(SealedReader* reader, uint64_t i) {
    const std::string wanted = RandomBytes(i + 1, 400 + i % 7);
    std::string got;
    const absl::Status status =
        reader->ReadPayload("run", testing::DigestOf(wanted), wanted.size(),
                            [&](absl::string_view piece) {
                              got.append(piece.data(), piece.size());
                              return absl::OkStatus();
                            });
    EXPECT_EQ(status.ok(), got == wanted);
    return status;
  }

  FaultObjectStore objects_;
  std::string* pack_ = nullptr;
  Seen expected_;
};

TEST_F(SmallPayloads, OfAStepAreReadInFewRequests) {
  SealStep();
  SealedReader reader(&objects_);
  const uint64_t before = objects_.calls();
  // Each has the bytes of its digest.
  EXPECT_TRUE(See(&reader, "run") == expected_);
  EXPECT_LE(objects_.calls() - before, 30u);
}

TEST_F(SmallPayloads, DamageIsOfOneAndIsReadAgain) {
  SealStep();
  SealedReader reader(&objects_);
  ASSERT_EQ(Read(&reader, 0), absl::OkStatus());
  const size_t at = pack_->find(RandomBytes(501, 400 + 500 % 7));
  ASSERT_NE(at, std::string::npos);
  (*pack_)[at + 5] ^= 1;
  for (uint64_t i = 1; i < 500; ++i)
    EXPECT_EQ(Read(&reader, i), absl::OkStatus()) << i;
  EXPECT_TRUE(absl::IsDataLoss(Read(&reader, 500)));
  // The bytes were wrong; the range is not kept in the cache.
  (*pack_)[at + 5] ^= 1;
  EXPECT_EQ(Read(&reader, 500), absl::OkStatus());
  EXPECT_EQ(Read(&reader, 501), absl::OkStatus());
}

}  // namespace
}  // namespace rankprobe
