// SPDX-License-Identifier: Apache-2.0
// Rules on data, losses, modes and schedules: each on a run that has its fault,
// and on its sound twin.
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/ranks_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(OneRankTest, ASoftmaxOverAnotherDimension) {
  const auto set = [&](double wrong, double causal) {
    for (size_t i = 0; i < 3; ++i) {
      Training(0, "softmax_dims.0", i, wrong);
      Training(0, "softmax_dims.1", i, causal);
      Training(0, "softmax_dims.2", i, 4);
    }
  };
  set(0, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  set(4, 4);
  auto found = Find("softmax-dimension");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  set(1, 0);
  found = Find("softmax-dimension");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(OneRankTest, InvertedSettings) {
  const auto set = [&](double p, double momentum) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      for (const char* const name : {"in_eval.0", "in_eval.2"})
        Training(0, name, i, 0);
      Training(0, "in_eval.1", i, 6);
      Training(0, "drop_probability", i, p);
      Training(0, "norm_momentum", i, momentum);
    }
  };
  set(0.5, 0.1);
  EXPECT_THAT(Find(""), IsEmpty());
  set(0.9, 0.1);
  auto found = Find("dropout-inverted");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("p = 0.1"));
  set(0.5, 0.99);
  found = Find("momentum-inverted");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("Is 0.01 meant"));
}

TEST_F(OneRankTest, AModelThatStaysInEvaluation) {
  const auto sleep = [&](size_t first, size_t end, double asleep, double root) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const bool is = i >= first && i < end;
      Training(0, "in_eval.0", i, is ? asleep : 0);
      Training(0, "in_eval.1", i, 6);
      Training(0, "in_eval.2", i, is ? root : 0);
    }
  };
  sleep(0, 0, 0, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  // A part that is frozen, and two steps.
  sleep(4, kRankSteps, 5, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  sleep(4, kRankSteps, 6, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  sleep(4, 6, 6, 1);
  EXPECT_THAT(Find(""), IsEmpty());
  sleep(4, 9, 6, 1);
  auto found = Find("model-in-eval");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 4);
  EXPECT_TRUE(found[0].exact);
  sleep(0, kRankSteps, 6, 1);
  found = Find("model-in-eval");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(OneRankTest, LabelsThatAreShiftedTwice) {
  const auto shares = [&](double same, double next, double after) {
    for (size_t i = 0; i < 3; ++i) {
      Training(0, "target_is_input.0", i, same);
      Training(0, "target_is_input.1", i, next);
      Training(0, "target_is_input.2", i, after);
    }
  };
  shares(0.02, 1, 0.03);
  EXPECT_THAT(Find(""), IsEmpty());
  shares(0.02, 0.05, 0.03);
  EXPECT_THAT(Find(""), IsEmpty());
  shares(0.02, 0.05, 1);
  EXPECT_THAT(Find("label-shift"), SizeIs(1));
  shares(1, 0.05, 0.02);
  EXPECT_THAT(Find("label-shift"), SizeIs(1));
}

TEST_F(OneRankTest, AttentionThatSeesWhatItPredicts) {
  const auto see = [&](double one_ahead, double later, double next_tokens) {
    for (size_t i = 0; i < 3; ++i) {
      Training(0, "attention_sees.0", i, one_ahead);
      Training(0, "attention_sees.1", i, later);
      Training(0, "attention_sees.2", i, 4);
      Training(0, "target_is_input.0", i, 0.02);
      Training(0, "target_is_input.1", i, next_tokens);
      Training(0, "target_is_input.2", i, 0.03);
      Training(0, "target_is_input.3", i, 0);
    }
  };
  see(0, 0, 1);
  EXPECT_THAT(Find(""), IsEmpty());
  // An encoder, and one beside a decoder.
  see(0, 1, 0.02);
  EXPECT_THAT(Find(""), IsEmpty());
  see(0, 0.5, 1);
  EXPECT_THAT(Find(""), IsEmpty());
  see(0, 1, 1);
  auto found = Find("attention-sees-future");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("all 4 attention calls"));
  see(0.25, 0, 0.02);
  found = Find("attention-sees-future");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("in 1 of 4 attention calls"));
  // A mean over the tokens, in a model of other targets and in one of the next.
  for (size_t i = 0; i < 3; ++i) Training(0, "sequence_means", i, 5);
  see(0, 0, 0.02);
  EXPECT_THAT(Find(""), IsEmpty());
  see(0, 0, 1);
  found = Find("attention-sees-future");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("over dim=1"));
}

TEST_F(OneRankTest, BatchesThatComeAgain) {
  const auto feed = [&](const std::function<size_t(size_t, size_t)>& batch,
                        size_t tokens = 48) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      Training(0, "guessing_loss", i, 3.9);
      for (size_t k = 0; k < 2; ++k) {
        const auto name = [&](absl::string_view what) {
          return absl::StrCat(what, ".", k);
        };
        Training(0, name("loss"), i, 1 + 0.1 * static_cast<double>(i));
        Training(0, name("loss_tokens"), i, static_cast<double>(tokens));
        Training(0, name("token_weight"), i, 0.1);
        Training(0, name("target_checksum"), i,
                 static_cast<double>(1000 + 7 * batch(i, k)));
      }
    }
  };
  feed([](size_t i, size_t k) { return 2 * i + k; });
  EXPECT_THAT(Find(""), IsEmpty());
  const auto sixth = [](size_t i, size_t k) {
    return 2 * (i == 6 ? 5 : i) + k;
  };
  feed(sixth);
  auto found = Find("batch-repeated");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_FALSE(found[0].exact);
  // So few targets may be the same by chance.
  feed(sixth, 4);
  EXPECT_THAT(Find(""), IsEmpty());
  // On purpose: one batch for all steps, each batch twice.
  feed([](size_t, size_t) { return 0; });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t i, size_t k) { return 2 * (i / 2) + k; });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t i, size_t) { return i; });
  found = Find("batch-repeated");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("micro batches"));
  // Adversarial training: the second forward has other weights, or other data.
  const auto twice = [&](const std::string& what, double second) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      for (const size_t k : {0, 1}) {
        At(0, absl::StrCat("Module.e.Embedding.forward.", k, ".", what), i) =
            RankCell{true, k == 0 ? 3. : second, 0.1, 1, -1};
      }
    }
  };
  twice("input.0", 3);
  twice("parameters.weight", 3);
  EXPECT_THAT(Find("batch-repeated"), SizeIs(1));
  twice("parameters.weight", 3.5);
  EXPECT_THAT(Find("batch-repeated"), IsEmpty());
  twice("parameters.weight", 3);
  twice("input.0", 3.5);
  EXPECT_THAT(Find("batch-repeated"), IsEmpty());
}

TEST_F(OneRankTest, PositionsThatAreOneAfterRounding) {
  Training(0, "merged_positions.0", 1, 0);
  Training(0, "merged_positions.1", 1, 400);
  EXPECT_THAT(Find(""), IsEmpty());
  Training(0, "merged_positions.0", 2, 72);
  Training(0, "merged_positions.1", 2, 400);
  const auto found = Find("positions-merge");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 2);
  EXPECT_THAT(found[0].what, HasSubstr("72 of 400 positions"));
}

TEST_F(RankRulesTest, AParameterGroupThatStopsToLearn) {
  const auto learn = [&](size_t group, size_t first_zero, size_t end) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const bool is_zero = i >= first_zero && i < end;
      for (size_t r = 0; r < 2; ++r)
        Training(r, absl::StrCat("lr.", group), i, is_zero ? 0 : 0.1);
    }
  };
  learn(0, kRankSteps, kRankSteps);
  learn(1, 6, kRankSteps);
  const auto found = Find("learning-rate-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_EQ(found[0].name, "Training.0.debug.lr.1");
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 0);
  EXPECT_THAT(found[0].what, HasSubstr("group 0: 0.1"));
  // Frozen from the first step on, or for a time.
  learn(1, 0, kRankSteps);
  EXPECT_THAT(Find(""), IsEmpty());
  learn(1, 4, 8);
  EXPECT_THAT(Find(""), IsEmpty());
  // A schedule that ends for all.
  learn(0, kRankSteps - 1, kRankSteps);
  learn(1, kRankSteps - 3, kRankSteps);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, ALossThatIsWorseThanAGuess) {
  const auto lose = [&](double factor) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      Training(0, "loss", i, 3.9 * factor);
      Training(0, "guessing_loss", i, 3.9);
      Training(0, "loss_tokens", i, 48);
      Training(0, "token_weight", i, 1.0 / 48);
    }
  };
  lose(1.02);
  EXPECT_THAT(Find(""), IsEmpty());
  lose(1.5);
  EXPECT_THAT(Find("worse-than-guessing"), SizeIs(1));
  // Large logits at the beginning.
  Training(0, "loss", 0, 3.9 * 3);
  EXPECT_THAT(Find(""), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
