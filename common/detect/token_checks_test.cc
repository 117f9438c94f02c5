// SPDX-License-Identifier: Apache-2.0
#include "common/detect/token_checks.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Tokens that differ, with numbers that vary as those of a sound request do.
std::vector<RequestToken> Sound(int64_t count) {
  std::vector<RequestToken> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const double wave = std::sin(static_cast<double>(i) * 1.7);
    tokens.push_back({i, 100 + i * i % 89, -2 + wave, 4 + wave, 10 + i});
  }
  return tokens;
}

std::optional<TokenFinding> Check(TokenCheck check,
                                  const std::vector<RequestToken>& tokens) {
  return CheckLastToken(check, tokens);
}

TEST(TokenChecksTest, NanIsNamedWithItsTokenAndStep) {
  std::vector<RequestToken> tokens = Sound(38);
  EXPECT_FALSE(Check({}, tokens).has_value());
  tokens.back().logprob = kNan;
  const auto found = Check({}, tokens);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, "token 37: log probability NaN");
  EXPECT_EQ(found->first, 37);
  EXPECT_EQ(found->step, 47);
  EXPECT_TRUE(found->is_nan);
  tokens.back() = {37, 1, -1, kNan, 47};
  EXPECT_EQ(Check({}, tokens)->text, "token 37: entropy NaN");
}

TEST(TokenChecksTest, AnEntropyHasCollapsedWhenAllOfTheLastTokensAreBelow) {
  TokenCheck check;
  check.kind = TokenCheck::Kind::kEntropy;
  check.below = 0.01;
  check.tokens = 4;
  std::vector<RequestToken> tokens = Sound(20);
  for (size_t i = 17; i < 20; ++i) tokens[i].entropy = 0.001;
  EXPECT_FALSE(Check(check, tokens).has_value());
  tokens[16].entropy = 0.001;
  EXPECT_EQ(Check(check, tokens)->text,
            "tokens 16 to 19: entropy 0.001, below 0.01");
  check.below.reset();
  check.above = 9;
  EXPECT_FALSE(Check(check, tokens).has_value());
  for (size_t i = 16; i < 20; ++i) tokens[i].entropy = 11;
  EXPECT_EQ(Check(check, tokens)->text, "tokens 16 to 19: entropy 11, above 9");
}

TEST(TokenChecksTest, ALogProbabilityIsFarOffTheRequestsOwn) {
  TokenCheck check;
  check.kind = TokenCheck::Kind::kLogprob;
  check.deviations = 6;
  std::vector<RequestToken> tokens = Sound(16);
  tokens.back().logprob = -15;
  // 15 tokens before it are too few for a mean.
  EXPECT_FALSE(Check(check, tokens).has_value());
  tokens = Sound(17);
  EXPECT_FALSE(Check(check, tokens).has_value());
  tokens.back().logprob = 0;  // only downwards
  EXPECT_FALSE(Check(check, tokens).has_value());
  tokens.back().logprob = -15;
  const auto found = Check(check, tokens);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->text,
              ::testing::StartsWith("token 16: log probability -15, the "
                                    "request's mean before is -"));
  // A NaN is no evidence of a low log probability.
  tokens.back().logprob = kNan;
  EXPECT_FALSE(Check(check, tokens).has_value());
}

TEST(TokenChecksTest, RepetitionOfASequenceOfAnyLengthUpToTheLimit) {
  TokenCheck check;
  check.kind = TokenCheck::Kind::kRepeat;
  check.length = 3;
  check.times = 4;
  std::vector<RequestToken> tokens = Sound(6);
  for (int64_t i = 6; i < 17; ++i) tokens.push_back({i, i % 3, -1, 2, i});
  EXPECT_FALSE(Check(check, tokens).has_value());
  tokens.push_back({17, 17 % 3, -1, 2, 17});
  EXPECT_EQ(Check(check, tokens)->text,
            "tokens 6 to 17: the same 3 tokens 4 times");
  check.length = 2;
  EXPECT_FALSE(Check(check, tokens).has_value());
  tokens.assign(4, {0, 5, -1, 2, 0});
  EXPECT_THAT(Check(check, tokens)->text,
              ::testing::EndsWith("the same 1 token 4 times"));
}

TEST(TokenChecksTest, TheUsualChecksNameTheFirstTokenOfABreak) {
  std::vector<RequestToken> tokens = Sound(60);
  const std::vector<TokenCheck> checks = UsualTokenChecks();
  for (const TokenCheck& check : checks)
    EXPECT_FALSE(FirstTokenFinding(check, tokens).has_value());
  for (size_t i = 37; i < 60; ++i) tokens[i].entropy = 0;
  int found = 0;
  for (const TokenCheck& check : checks) {
    const auto finding = FirstTokenFinding(check, tokens);
    if (!finding.has_value()) continue;
    ++found;
    EXPECT_EQ(finding->first, 37);
    EXPECT_FALSE(finding->is_nan);
  }
  EXPECT_EQ(found, 1);
}

TEST(TokenChecksTest, ATokenIsComparedWithThatOfItsReference) {
  TokenCheck check;
  check.kind = TokenCheck::Kind::kReference;
  check.above = 0.5;
  const std::vector<RequestToken> sound = Sound(8);
  TokenAnswer answer;
  for (const RequestToken& token : sound) {
    answer.ids.push_back(token.id);
    answer.logprobs.push_back(token.logprob);
  }
  const auto first = [&](const std::vector<RequestToken>& tokens) {
    std::optional<TokenFinding> found;
    for (size_t n = 1; n <= tokens.size() && !found.has_value(); ++n)
      found = CheckLastToken(check, absl::MakeSpan(tokens).first(n), &answer);
    return found;
  };
  EXPECT_FALSE(first(sound).has_value());
  EXPECT_FALSE(CheckLastToken(check, sound).has_value()) << "no reference";
  std::vector<RequestToken> off = sound;
  off[5].logprob = answer.logprobs[5] - 0.6;
  ASSERT_TRUE(first(off).has_value());
  EXPECT_EQ(first(off)->first, 5);
  EXPECT_EQ(first(off)->step, 15);
  EXPECT_THAT(first(off)->text,
              testing::MatchesRegex("token 5: log probability -[0-9.]+, "
                                    "-[0-9.]+ in the reference"));
  off[5].logprob = answer.logprobs[5] + 0.6;
  EXPECT_TRUE(first(off).has_value()) << "to both sides";
  off[5].logprob = kNan;
  EXPECT_TRUE(first(off).has_value());
  // Two tokens are equally likely: what follows another token is another text.
  std::vector<RequestToken> other = sound;
  other[3].id = 99;
  other[4].logprob = -9;
  EXPECT_FALSE(first(other).has_value());
  // A longer answer than the reference, and one whose first tokens are no
  // longer in memory, have no number to compare with.
  EXPECT_FALSE(first(Sound(20)).has_value());
  const std::vector<RequestToken> late(off.begin() + 1, off.end());
  EXPECT_FALSE(first(late).has_value());
}

}  // namespace
}  // namespace rankprobe
