// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/payload_leases.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kA(16, 'a'), kB(16, 'b');

TEST(PayloadLeasesTest, TheFirstSendsAndTheOthersHearOfIt) {
  PayloadLeases leases;
  EXPECT_TRUE(leases.Claim("run", kA, 5, 1, 0));
  EXPECT_TRUE(leases.Claim("run", kA, 5, 1, 0)) << "asked again";
  EXPECT_FALSE(leases.Claim("run", kA, 5, 2, 0));
  EXPECT_FALSE(leases.Claim("run", kA, 5, 3, 0));
  EXPECT_TRUE(leases.Claim("other", kA, 5, 4, 0)) << "another run";
  EXPECT_TRUE(leases.Claim("run", kA, 6, 4, 0)) << "another payload";
  EXPECT_TRUE(leases.Claim("run", kB, 5, 2, 0));
  EXPECT_THAT(leases.OnComplete("run", kA, 5), ElementsAre(2, 3));
  EXPECT_THAT(leases.OnComplete("run", kA, 5), IsEmpty());
  EXPECT_TRUE(leases.Claim("run", kA, 5, 3, 0));
}

TEST(PayloadLeasesTest, TheNextInLineInherits) {
  PayloadLeases leases;
  leases.Claim("run", kA, 5, 1, 0);
  leases.Claim("run", kA, 5, 2, 0);
  leases.Claim("run", kA, 5, 3, 0);
  leases.Claim("run", kB, 5, 1, 0);
  EXPECT_THAT(leases.ReleaseAll(2, 0), IsEmpty());
  const auto reassigned = leases.ReleaseAll(1, 0);
  ASSERT_EQ(reassigned.size(), 1u);
  EXPECT_EQ(reassigned[0].upload, 3u);
  EXPECT_EQ(reassigned[0].digest, kA);
  EXPECT_THAT(leases.OnComplete("run", kA, 5), IsEmpty());
  EXPECT_THAT(leases.ReleaseAll(3, 0), IsEmpty());
  EXPECT_TRUE(leases.empty());
}

TEST(PayloadLeasesTest, APromiseRunsOut) {
  const int64_t patience = PayloadLeases::kPatienceNs;
  PayloadLeases leases;
  EXPECT_TRUE(leases.Claim("run", kA, 5, 1, 0));
  EXPECT_FALSE(leases.awaited()) << "nobody waits yet";
  EXPECT_FALSE(leases.Claim("run", kA, 5, 2, 100));
  EXPECT_FALSE(leases.Claim("run", kA, 5, 3, 200));
  EXPECT_TRUE(leases.awaited());
  EXPECT_THAT(leases.HandOn(patience - 1), IsEmpty());
  // A chunk of it counts as progress.
  leases.Progress("run", kA, 5, patience - 1);
  EXPECT_THAT(leases.HandOn(patience), IsEmpty());
  const auto reassigned = leases.HandOn(2 * patience);
  ASSERT_EQ(reassigned.size(), 1u);
  EXPECT_EQ(reassigned[0].upload, 2u);
  EXPECT_EQ(reassigned[0].digest, kA);
  // The first has lost its claim; the second has its own time.
  EXPECT_THAT(leases.HandOn(3 * patience - 1), IsEmpty());
  EXPECT_THAT(leases.OnComplete("run", kA, 5), ElementsAre(3));
  EXPECT_THAT(leases.HandOn(10 * patience), IsEmpty());
  EXPECT_FALSE(leases.awaited());
}

TEST(PayloadLeasesTest, WhoBreaksManyMakesNone) {
  const int64_t late = PayloadLeases::kPatienceNs;
  PayloadLeases leases;
  for (uint64_t i = 0; i < PayloadLeases::kMaxBroken; ++i) {
    EXPECT_TRUE(leases.Claim("run", kA, i, 1, 0));
    EXPECT_TRUE(leases.Claim("run", kA, i, 2, late)) << "the promise is old";
    if (i == 0) EXPECT_THAT(leases.OnComplete("run", kA, i), IsEmpty());
  }
  EXPECT_TRUE(leases.Claim("run", kB, 1, 1, late));
  EXPECT_TRUE(leases.Claim("run", kB, 1, 2, late)) << "1 promises no more";
  EXPECT_FALSE(leases.Claim("run", kB, 1, 3, late)) << "2 does";
  leases.ReleaseAll(1, late);
  EXPECT_TRUE(leases.Claim("run", kB, 9, 1, late)) << "another upload";
  EXPECT_FALSE(leases.Claim("run", kB, 9, 2, late));
}

TEST(PayloadLeasesTest, APayloadThatComesClearsTheScore) {
  const int64_t late = PayloadLeases::kPatienceNs;
  PayloadLeases leases;
  for (int round = 0; round < 3 * PayloadLeases::kMaxBroken; ++round) {
    const auto i = static_cast<uint64_t>(round);
    EXPECT_TRUE(leases.Claim("run", kA, i, 1, 0));
    EXPECT_TRUE(leases.Claim("run", kA, i, 2, late));
    EXPECT_TRUE(leases.Claim("run", kB, i, 1, late));
    EXPECT_FALSE(leases.Claim("run", kB, i, 2, late)) << round;
    EXPECT_THAT(leases.OnComplete("run", kB, i), ElementsAre(2));
  }
}

TEST(PayloadLeasesTest, AnUploadHoldsABoundedNumber) {
  PayloadLeases leases;
  for (size_t i = 0; i < PayloadLeases::kMaxPerUpload; ++i)
    EXPECT_TRUE(leases.Claim("run", kA, i, 1, 0));
  EXPECT_TRUE(leases.Claim("run", kB, 5, 1, 0)) << "sent, not remembered";
  EXPECT_TRUE(leases.Claim("run", kB, 5, 2, 0));
}

}  // namespace
}  // namespace rankprobe
