// SPDX-License-Identifier: Apache-2.0
#include "collector/control/run_triggers.h"

#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);

v1::TriggerSpec SpecWith(const std::function<void(v1::TriggerRule*)>& fill) {
  v1::TriggerSpec spec;
  v1::TriggerRule* rule = spec.add_rules();
  rule->set_name("rule");
  fill(rule);
  return spec;
}

RunTriggers::Rank MakeRank(int64_t rank, int64_t step, absl::Time moved) {
  RunTriggers::Rank r;
  r.identity = testing::MakeIdentity("run", rank, 100 + rank);
  r.step = step;
  r.connected = true;
  r.moved = moved;
  return r;
}

v1::ReplicaDigest Digest(int64_t step, uint64_t digest) {
  v1::ReplicaDigest replica;
  replica.set_step(step);
  replica.set_digest(digest);
  return replica;
}

TEST(RunTriggersTest, TheMinorityOfReplicasIsNamedOnceAllHaveReported) {
  RunTriggers triggers;
  triggers.Set(SpecWith([](auto* rule) { rule->mutable_replica(); }));
  const auto id = [](int64_t r) {
    return testing::MakeIdentity("run", r, 100 + r);
  };
  EXPECT_THAT(triggers.OnReplica(id(0), Digest(5, 7), 3), IsEmpty());
  EXPECT_THAT(triggers.OnReplica(id(1), Digest(5, 8), 3), IsEmpty());
  const auto fired = triggers.OnReplica(id(2), Digest(5, 7), 3);
  ASSERT_THAT(fired, SizeIs(1));
  EXPECT_EQ(fired[0].identity.rank(), 1);
  EXPECT_EQ(fired[0].step, 5);
  EXPECT_THAT(fired[0].detail, HasSubstr("2 of 3"));
  for (int64_t r = 0; r < 3; ++r)
    EXPECT_THAT(triggers.OnReplica(id(r), Digest(6, 9), 3), IsEmpty());
}

TEST(RunTriggersTest, SilenceNamesThoseFurthestBehindOnceForEachStep) {
  RunTriggers triggers;
  triggers.Set(SpecWith(
      [](auto* rule) { rule->mutable_silence()->set_after_ms(1000); }));
  std::vector<RunTriggers::Rank> ranks = {MakeRank(0, 8, kStart),
                                          MakeRank(1, 7, kStart)};
  EXPECT_THAT(triggers.CheckSilence(ranks, kStart + absl::Milliseconds(999)),
              IsEmpty());
  const auto fired = triggers.CheckSilence(ranks, kStart + absl::Seconds(1));
  ASSERT_THAT(fired, SizeIs(1));
  EXPECT_EQ(fired[0].identity.rank(), 1);
  EXPECT_THAT(fired[0].detail, HasSubstr("no new step for 1s"));
  EXPECT_THAT(triggers.CheckSilence(ranks, kStart + absl::Seconds(9)),
              IsEmpty());
  // It moves and is silent again, now in the same step as the other.
  ranks[1].step = 8;
  ranks[1].moved = kStart + absl::Seconds(9);
  EXPECT_THAT(triggers.CheckSilence(ranks, kStart + absl::Seconds(10)),
              SizeIs(2));
}

TEST(RunTriggersTest, AFarewellIsNoSilenceAndALostConnectionIs) {
  RunTriggers triggers;
  triggers.Set(SpecWith(
      [](auto* rule) { rule->mutable_silence()->set_after_ms(1000); }));
  std::vector<RunTriggers::Rank> ranks = {MakeRank(0, 3, kStart)};
  ranks[0].connected = false;
  ranks[0].farewell = true;
  EXPECT_THAT(triggers.CheckSilence(ranks, kStart + absl::Seconds(5)),
              IsEmpty());
  ranks[0].farewell = false;
  const auto fired = triggers.CheckSilence(ranks, kStart + absl::Seconds(5));
  ASSERT_THAT(fired, SizeIs(1));
  EXPECT_THAT(fired[0].detail, HasSubstr("without a goodbye"));
}

TEST(RunTriggersTest, ARuleRestsAndHasABudgetOfTurns) {
  RunTriggers triggers;
  triggers.Set(SpecWith([](auto* rule) {
    rule->mutable_non_finite();
    rule->set_cool_down_ms(1000);
    rule->set_max_fires(2);
  }));
  const v1::TriggerRule& rule = triggers.spec().rules(0);
  std::string why;
  EXPECT_TRUE(triggers.TryStartCooldown(rule, "", kStart, &why));
  EXPECT_FALSE(triggers.TryStartCooldown(
      rule, "", kStart + absl::Milliseconds(400), &why));
  EXPECT_EQ(why, "the rule pauses for another 600ms");
  EXPECT_TRUE(
      triggers.TryStartCooldown(rule, "", kStart + absl::Seconds(1), &why));
  EXPECT_FALSE(
      triggers.TryStartCooldown(rule, "", kStart + absl::Seconds(9), &why));
  EXPECT_EQ(why, "the rule has fired 2 times");
}

TEST(RunTriggersTest, TheRunsBytesDegradeInTwoStages) {
  RunTriggers triggers;
  v1::TriggerSpec spec;
  spec.mutable_budget()->set_bytes_per_run(1000);
  triggers.Set(spec);
  EXPECT_EQ(triggers.OnBytes(999), std::nullopt);
  EXPECT_EQ(triggers.OnBytes(1), 1u);
  EXPECT_EQ(triggers.OnBytes(999), std::nullopt);
  EXPECT_EQ(triggers.OnBytes(1), 2u);
  EXPECT_EQ(triggers.OnBytes(1000000), std::nullopt);
  EXPECT_EQ(triggers.degrade(), 2u);
}

TEST(RunTriggersTest, RulesOfAgentsAreFoundByName) {
  RunTriggers triggers;
  triggers.Set(SpecWith([](auto* rule) { rule->mutable_non_finite(); }));
  v1::TriggerFired fired;
  fired.set_rule("other");
  EXPECT_FALSE(triggers.OnFired({}, fired).has_value());
  fired.set_rule("rule");
  fired.set_entry("e");
  ASSERT_TRUE(triggers.OnFired({}, fired).has_value());
  EXPECT_EQ(triggers.OnFired({}, fired)->rule.level(), "mix");
}

}  // namespace
}  // namespace rankprobe
