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
  EXPECT_TRUE(claims.Claim("run", kA, 5, 1));
  EXPECT_TRUE(claims.Claim("run", kA, 5, 1)) << "asked again";
  EXPECT_FALSE(claims.Claim("run", kA, 5, 2));
  EXPECT_FALSE(claims.Claim("run", kA, 5, 3));
  EXPECT_TRUE(claims.Claim("other", kA, 5, 4)) << "another run";
  EXPECT_TRUE(claims.Claim("run", kA, 6, 4)) << "another payload";
  EXPECT_TRUE(claims.Claim("run", kB, 5, 2));
  EXPECT_THAT(claims.Whole("run", kA, 5), ElementsAre(2, 3));
  EXPECT_THAT(claims.Whole("run", kA, 5), IsEmpty());
  EXPECT_TRUE(claims.Claim("run", kA, 5, 3));
}

TEST(PayloadClaimsTest, TheNextInLineInherits) {
  PayloadClaims claims;
  claims.Claim("run", kA, 5, 1);
  claims.Claim("run", kA, 5, 2);
  claims.Claim("run", kA, 5, 3);
  claims.Claim("run", kB, 5, 1);
  EXPECT_THAT(claims.Gone(2), IsEmpty());
  const auto heirs = claims.Gone(1);
  ASSERT_EQ(heirs.size(), 1u);
  EXPECT_EQ(heirs[0].upload, 3u);
  EXPECT_EQ(heirs[0].digest, kA);
  EXPECT_THAT(claims.Whole("run", kA, 5), IsEmpty());
  EXPECT_THAT(claims.Gone(3), IsEmpty());
  EXPECT_TRUE(claims.empty());
}

TEST(PayloadClaimsTest, AnUploadHoldsABoundedNumber) {
  PayloadClaims claims;
  for (size_t i = 0; i < PayloadClaims::kMaxPerUpload; ++i)
    EXPECT_TRUE(claims.Claim("run", kA, i, 1));
  EXPECT_TRUE(claims.Claim("run", kB, 5, 1)) << "sent, not remembered";
  EXPECT_TRUE(claims.Claim("run", kB, 5, 2));
}

}  // namespace
}  // namespace rankprobe
