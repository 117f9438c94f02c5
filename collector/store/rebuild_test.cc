// SPDX-License-Identifier: Apache-2.0
// Payloads that are named for their principal, when their rows are lost. Other
// content of a rebuilt index is tested in rebuild_sweep_test.cc.
#include "collector/store/rebuild.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/store/index.h"
#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;

std::string NameOf(absl::string_view principal, absl::string_view digest) {
  return DigestOf(absl::StrCat(principal, digest));
}

class RebuildScopeTest : public testing::TempDirTest {
 protected:
  // Adds a step for each payload, sent by `principal` in run `run`.
  void Fill(Store* store, const std::string& run, const std::string& principal,
            uint64_t incarnation) {
    Frames frames(MakeIdentity(run, 0, incarnation));
    for (const std::string& data : data_)
      frames.AddStep(static_cast<int64_t>(incarnation * 100 + frames.size()),
                     data, 4000);
    std::vector<std::string> contents(frames.size());
    std::vector<FrameToStore> all = frames.All();
    for (size_t i = 0; i < frames.size(); ++i) {
      v1::UploadFrame& frame = frames.frame(i);
      if (frame.has_chunk()) {
        contents[i] = frame.chunk().digest();
        frame.mutable_chunk()->set_digest(NameOf(principal, contents[i]));
        all[i].content_digest = contents[i];
        continue;
      }
      std::string* const digest = frame.mutable_batch()
                                      ->mutable_records(0)
                                      ->mutable_call()
                                      ->mutable_output()
                                      ->mutable_items(0)
                                      ->mutable_tensor()
                                      ->mutable_payload()
                                      ->mutable_digest();
      *digest = NameOf(principal, *digest);
    }
    IncarnationClaim claim{
        .from_agent = true, .secret_sha256 = "secret", .principal = principal};
    ASSERT_TRUE(store->OpenIncarnation(frames.identity(), claim).ok());
    ASSERT_TRUE(store->Commit(all).ok());
  }
  // Deletes tables of the index, given by the first letter of their keys.
  void Lose(const std::string& tables) {
    const auto index = *OpenLevelDbIndex(
        {root_ + "/data/index", 1 << 20, 1 << 20, file_system_.get()});
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    for (const char table : tables) {
      ASSERT_TRUE(index
                      ->Scan(std::string(1, table),
                             [&](absl::string_view key, absl::string_view) {
                               batch->Delete(key);
                               return absl::OkStatus();
                             })
                      .ok());
    }
    ASSERT_TRUE(index->Write(std::move(batch), true).ok());
  }
  absl::StatusOr<RebuildReport> Rebuild() {
    return RebuildIndex(Options(), file_system_.get(), &clock_, &NameOf);
  }
  size_t Served(Store* store, const std::string& run,
                const std::string& principal) {
    size_t served = 0;
    for (const std::string& data : data_) {
      const auto out = testing::ReadBack(
          store, run, NameOf(principal, DigestOf(data)), data.size());
      if (!out.ok()) continue;
      EXPECT_EQ(*out, data);
      ++served;
    }
    return served;
  }

  const std::vector<std::string> data_{RandomBytes(1, 9000),
                                       RandomBytes(2, 700)};
};

TEST_F(RebuildScopeTest, AreCheckedAgainstTheNamesOfTheRunsPrincipals) {
  {
    const auto store = OpenStore();
    Fill(store.get(), "run", "alice", 1);
    Fill(store.get(), "run", "bob", 2);
    Fill(store.get(), "other", "carol", 3);
  }
  Lose("pk");
  const auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->payloads_found, 6u);
  EXPECT_EQ(report->incomplete_payloads, 0u);
  const auto store = OpenStore();
  EXPECT_EQ(Served(store.get(), "run", "alice"), 2u);
  EXPECT_EQ(Served(store.get(), "run", "bob"), 2u);
  EXPECT_EQ(Served(store.get(), "other", "carol"), 2u);
  EXPECT_EQ(Served(store.get(), "run", "carol"), 0u);
  // The row has the digest of the bytes again.
  v1::VerifyRequest request;
  request.set_read_data(true);
  EXPECT_EQ(store->Verify(request, {})->fault_count(), 0u);
}

TEST_F(RebuildScopeTest, WithoutTheirPrincipalTheyCannotBeChecked) {
  {
    const auto store = OpenStore();
    Fill(store.get(), "run", "alice", 1);
  }
  Lose("pki");
  const auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->payloads_found, 0u);
  EXPECT_EQ(report->incomplete_payloads, 2u);
}

}  // namespace
}  // namespace rankprobe
