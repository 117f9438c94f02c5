#include "collector/ingest/payload_claims.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kA(16, 'a'), kB(16, 'b');

TEST(PayloadClaimsTest, TheFirstSendsAndTheOthersHearOfIt) {
  PayloadClaims claims;
  EXPECT_TRUE(claims.Claim("run", kA, 5, 1, 0));
  EXPECT_TRUE(claims.Claim("run", kA, 5, 1, 0)) << "asked again";
  EXPECT_FALSE(claims.Claim("run", kA, 5, 2, 0));
  EXPECT_FALSE(claims.Claim("run", kA, 5, 3, 0));
  EXPECT_TRUE(claims.Claim("other", kA, 5, 4, 0)) << "another run";
  EXPECT_TRUE(claims.Claim("run", kA, 6, 4, 0)) << "another payload";
  EXPECT_TRUE(claims.Claim("run", kB, 5, 2, 0));
  EXPECT_THAT(claims.Whole("run", kA, 5), ElementsAre(2, 3));
  EXPECT_THAT(claims.Whole("run", kA, 5), IsEmpty());
  EXPECT_TRUE(claims.Claim("run", kA, 5, 3, 0));
}

TEST(PayloadClaimsTest, TheNextInLineInherits) {
  PayloadClaims claims;
  claims.Claim("run", kA, 5, 1, 0);
  claims.Claim("run", kA, 5, 2, 0);
  claims.Claim("run", kA, 5, 3, 0);
  claims.Claim("run", kB, 5, 1, 0);
  EXPECT_THAT(claims.Gone(2, 0), IsEmpty());
  const auto heirs = claims.Gone(1, 0);
  ASSERT_EQ(heirs.size(), 1u);
  EXPECT_EQ(heirs[0].upload, 3u);
  EXPECT_EQ(heirs[0].digest, kA);
  EXPECT_THAT(claims.Whole("run", kA, 5), IsEmpty());
  EXPECT_THAT(claims.Gone(3, 0), IsEmpty());
  EXPECT_TRUE(claims.empty());
}

TEST(PayloadClaimsTest, APromiseRunsOut) {
  const int64_t patience = PayloadClaims::kPatienceNs;
  PayloadClaims claims;
  EXPECT_TRUE(claims.Claim("run", kA, 5, 1, 0));
  EXPECT_FALSE(claims.awaited()) << "nobody waits yet";
  EXPECT_FALSE(claims.Claim("run", kA, 5, 2, 100));
  EXPECT_FALSE(claims.Claim("run", kA, 5, 3, 200));
  EXPECT_TRUE(claims.awaited());
  EXPECT_THAT(claims.HandOn(patience - 1), IsEmpty());
  // A piece of it is a sign of life.
  claims.Progress("run", kA, 5, patience - 1);
  EXPECT_THAT(claims.HandOn(patience), IsEmpty());
  const auto heirs = claims.HandOn(2 * patience);
  ASSERT_EQ(heirs.size(), 1u);
  EXPECT_EQ(heirs[0].upload, 2u);
  EXPECT_EQ(heirs[0].digest, kA);
  // The first is out; the second has its own time.
  EXPECT_THAT(claims.HandOn(3 * patience - 1), IsEmpty());
  EXPECT_THAT(claims.Whole("run", kA, 5), ElementsAre(3));
  EXPECT_THAT(claims.HandOn(10 * patience), IsEmpty());
  EXPECT_FALSE(claims.awaited());
}

TEST(PayloadClaimsTest, WhoBreaksManyMakesNone) {
  const int64_t late = PayloadClaims::kPatienceNs;
  PayloadClaims claims;
  for (uint64_t i = 0; i < PayloadClaims::kMaxBroken; ++i) {
    EXPECT_TRUE(claims.Claim("run", kA, i, 1, 0));
    EXPECT_TRUE(claims.Claim("run", kA, i, 2, late)) << "the promise is old";
    if (i == 0) EXPECT_THAT(claims.Whole("run", kA, i), IsEmpty());
  }
  EXPECT_TRUE(claims.Claim("run", kB, 1, 1, late));
  EXPECT_TRUE(claims.Claim("run", kB, 1, 2, late)) << "1 promises no more";
  EXPECT_FALSE(claims.Claim("run", kB, 1, 3, late)) << "2 does";
  claims.Gone(1, late);
  EXPECT_TRUE(claims.Claim("run", kB, 9, 1, late)) << "another upload";
  EXPECT_FALSE(claims.Claim("run", kB, 9, 2, late));
}

TEST(PayloadClaimsTest, APayloadThatComesClearsTheScore) {
  const int64_t late = PayloadClaims::kPatienceNs;
  PayloadClaims claims;
  for (int round = 0; round < 3 * PayloadClaims::kMaxBroken; ++round) {
    const auto i = static_cast<uint64_t>(round);
    EXPECT_TRUE(claims.Claim("run", kA, i, 1, 0));
    EXPECT_TRUE(claims.Claim("run", kA, i, 2, late));
    EXPECT_TRUE(claims.Claim("run", kB, i, 1, late));
    EXPECT_FALSE(claims.Claim("run", kB, i, 2, late)) << round;
    EXPECT_THAT(claims.Whole("run", kB, i), ElementsAre(2));
  }
}

TEST(PayloadClaimsTest, AnUploadHoldsABoundedNumber) {
  PayloadClaims claims;
  for (size_t i = 0; i < PayloadClaims::kMaxPerUpload; ++i)
    EXPECT_TRUE(claims.Claim("run", kA, i, 1, 0));
  EXPECT_TRUE(claims.Claim("run", kB, 5, 1, 0)) << "sent, not remembered";
  EXPECT_TRUE(claims.Claim("run", kB, 5, 2, 0));
}

}  // namespace
}  // namespace rankprobe
