// SPDX-License-Identifier: Apache-2.0
#include "common/config/trigger_spec.h"

#include "absl/strings/str_cat.h"
#include "common/config/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

TEST(TriggerSpecTest, ReadsJsonAndFillsDefaults) {
  const auto spec = ParseTriggerSpec(R"({
    "flight": {"steps": 3},
    "rules": [{"name": "nan", "non_finite": {"nan_only": true}},
              {"name": "jump", "norm_jump": {"factor": 100}, "level": "L1"},
              {"name": "sharp", "move": {"factor": 9}},
              {"name": "dead", "vanished": {"from_start": true}}],
    "budget": {"bytes_per_step": 1000000}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::TriggerSpec full = WithDefaults(*spec);
  EXPECT_EQ(full.flight().level(), "L0");
  EXPECT_EQ(full.flight().max_bytes(), 16u << 20);
  EXPECT_EQ(full.rules(0).level(), "mix");
  EXPECT_EQ(full.rules(0).for_steps(), 2);
  EXPECT_EQ(full.rules(1).level(), "L1");
  EXPECT_EQ(full.rules(1).norm_jump().warmup(), 5u);
  EXPECT_EQ(full.rules(2).move().statistic(), v1::Move::STATISTIC_NORM);
  EXPECT_EQ(full.rules(2).move().window(), 20u);
  EXPECT_EQ(full.rules(2).move().deviations(), 8);
  EXPECT_EQ(full.rules(2).move().factor(), 9);
  EXPECT_EQ(full.rules(3).vanished().values(), 5u);
  EXPECT_EQ(ParseTriggerSpec(TriggerSpecToJson(full))->SerializeAsString(),
            full.SerializeAsString());
}

TEST(TriggerSpecTest, NamesEveryFault) {
  const auto spec = ParseTriggerSpec(R"({
    "flight": {"steps": 1001, "level": "L9"},
    "rules": [{"name": "a"}, {"name": "a", "silence": {"after_ms": 1}},
              {"name": "j", "norm_jump": {"factor": 1}},
              {"name": "l", "loss": {}, "for_steps": -1},
              {"name": "m", "move": {"statistic": 9, "window": 1,
                                     "deviations": -1, "factor": 1}},
              {"name": "w", "move": {"window": 1001, "factor": "Infinity"}},
              {"name": "v", "vanished": {"values": 1000001}},
              {"name": "e", "token_entropy": {"tokens": 1025}},
              {"name": "p", "token_logprob": {"deviations": -1, "below": 0}},
              {"name": "r", "token_repeat": {"length": 257, "times": 1}}],
    "budget": {"ms_per_step": -1}})");
  const std::string message(spec.status().message());
  for (const char* word : {"flight.steps",
                           "flight.level",
                           "rules[0].condition",
                           "rules[1].name",
                           "rules[1].silence.after_ms",
                           "rules[2].norm_jump.factor",
                           "rules[3].loss",
                           "rules[3].for_steps",
                           "rules[4].move.statistic",
                           "rules[4].move.window",
                           "rules[4].move.deviations",
                           "rules[4].move.factor",
                           "rules[5].move.window",
                           "rules[5].move.factor",
                           "rules[6].vanished.values",
                           "rules[7].token_entropy: no bound",
                           "rules[7].token_entropy.tokens",
                           "rules[8].token_logprob.deviations",
                           "rules[9].token_repeat.length",
                           "rules[9].token_repeat.times",
                           "budget.ms_per_step"})
    EXPECT_THAT(message, HasSubstr(word));
  EXPECT_FALSE(ParseTriggerSpec("{").ok());
  EXPECT_FALSE(ParseTriggerSpec(R"({"unknown": 1})").ok());
  EXPECT_EQ(ParseTriggerSpec(R"({"rule": []})").status().message(),
            "unknown key rule; did you mean rules?");
  EXPECT_EQ(ParseTriggerSpec(R"({"rules": [{"non_finite": {"nan_onyl": 1}}]})")
                .status()
                .message(),
            "unknown key nan_onyl in (rules[0].non_finite); did you mean "
            "nan_only?");
  EXPECT_FALSE(ParseTriggerSpec(R"({"budget": {"ms_per_step": "NaN"}})").ok());
}

TEST(TriggerSpecTest, ARuleAboutTokensKeepsTokens) {
  const auto none = ParseTriggerSpec(R"({"flight": {"steps": 1}})");
  EXPECT_EQ(WithDefaults(*none).flight().tokens(), 0u);
  const auto spec = ParseTriggerSpec(R"({"rules": [
      {"name": "n", "token_nan": {}},
      {"name": "e", "token_entropy": {"below": 0.5}},
      {"name": "p", "token_logprob": {"deviations": 6}},
      {"name": "r", "token_repeat": {}}, {"name": "l", "loss": {"above": 1}}]})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::TriggerSpec full = WithDefaults(*spec);
  EXPECT_EQ(full.flight().tokens(), 1024u);
  EXPECT_EQ(full.flight().requests(), 256u);
  EXPECT_EQ(TokenCheckOf(full.rules(0))->kind, TokenCheck::Kind::kNan);
  EXPECT_EQ(TokenCheckOf(full.rules(1))->below, 0.5);
  EXPECT_EQ(TokenCheckOf(full.rules(1))->tokens, 8u);
  EXPECT_EQ(TokenCheckOf(full.rules(2))->deviations, 6);
  EXPECT_EQ(TokenCheckOf(full.rules(2))->tokens, 1u);
  EXPECT_EQ(TokenCheckOf(full.rules(3))->length, 8u);
  EXPECT_EQ(TokenCheckOf(full.rules(3))->times, 8u);
  EXPECT_FALSE(TokenCheckOf(full.rules(4)).has_value());
}

TEST(TriggerSpecTest, AReferenceHasANumberForEachToken) {
  const auto parse = [](absl::string_view reference) {
    return ParseTriggerSpec(absl::StrCat(
        R"({"rules": [{"name": "c", "token_reference": )", reference, "}]}"));
  };
  const auto spec = parse(
      R"({"answers": [{"request": "a", "ids": [7, 9], "logprobs": [-1, -2]}]})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto check = TokenCheckOf(WithDefaults(*spec).rules(0));
  EXPECT_EQ(check->kind, TokenCheck::Kind::kReference);
  EXPECT_EQ(check->above, 0.5);
  ASSERT_EQ(check->answers.size(), 1u);
  EXPECT_EQ(check->answers[0].request, "a");
  EXPECT_EQ(check->answers[0].ids, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(check->answers[0].logprobs, (std::vector<double>{-1, -2}));
  for (
      const auto& [reference, field] :
      std::vector<std::pair<std::string, std::string>>{
          {R"({})", "token_reference.answers"},
          {R"({"above": -1, "answers": []})", "token_reference.above"},
          {R"({"answers": [{"ids": [1], "logprobs": [0]}]})",
           "answers[0].request"},
          {R"({"answers": [{"request": "a"}]})", "answers[0].ids"},
          {R"({"answers": [{"request": "a", "ids": [1, 2], "logprobs": [0]}]})",
           "answers[0].logprobs"},
          {R"({"answers": [{"request": "a", "ids": [1],)"
           R"( "logprobs": ["NaN"]}]})",
           "answers[0].logprobs"}}) {
    EXPECT_THAT(parse(reference).status().message(), HasSubstr(field));
  }
}

TEST(TriggerSpecTest, MadeConfigsAreLegalPlans) {
  v1::FlightSpec flight;
  for (const char* level : {"", "L0", "L1", "mix", "tokens"}) {
    flight.set_level(level);
    const auto config = ParseConfig(FlightConfigJson(flight), {});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_FALSE(config->plan.HasPayloads());
    EXPECT_TRUE(config->plan.extra_info) << "a finding has its line of code";
    EXPECT_TRUE(config->warnings.empty());
  }
  v1::TriggerRule rule;
  for (int evidence = 0; evidence <= 4; ++evidence) {
    rule.set_raise_to(static_cast<v1::TriggerRule::Evidence>(evidence));
    const auto config = ParseConfig(RaisedConfigJson(rule), {});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->warnings.empty());
    EXPECT_EQ(config->plan.HasPayloads(), evidence == 0 || evidence == 4);
    EXPECT_EQ(config->plan.level, Level::kMix);
  }
}

}  // namespace
}  // namespace rankprobe
