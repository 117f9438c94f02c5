// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/request_tokens.h"

#include <limits>

#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/config/trigger_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<v1::RunFact> Facts(
    const std::vector<RequestTokens::Wanted>& wanted) {
  std::vector<v1::RunFact> facts;
  for (const RequestTokens::Wanted& one : wanted)
    facts.insert(facts.end(), one.facts.begin(), one.facts.end());
  return facts;
}

std::vector<std::string> Texts(const std::vector<v1::RunFact>& facts) {
  std::vector<std::string> texts;
  for (const v1::RunFact& fact : facts)
    texts.push_back(
        absl::StrCat(fact.section(), "|", fact.name(), "|", fact.value()));
  return texts;
}

TEST(RequestTokensTest, KeepsTheLastTokensAndTheNewestRequests) {
  RequestTokens kept;
  EXPECT_THAT(kept.Add("a", {}), SizeIs(0));  // off
  kept.SetLimits(/*requests=*/2, /*tokens=*/3);
  for (int64_t i = 0; i < 20; ++i) {
    const auto tokens = kept.Add("a", {i, 7, -0.5, 2, i});
    ASSERT_THAT(tokens, SizeIs(std::min<size_t>(i + 1, 3)));
    EXPECT_EQ(tokens.back().index, i);
  }
  kept.Add("b", {0, 8, -1, 2, 21});
  kept.Add("a", {20, 7, std::numeric_limits<double>::quiet_NaN(), 2, 22});
  kept.Add("c", {0, 9, -1, 2, 23});  // in place of b, the oldest
  EXPECT_EQ(kept.Flag("b").step(), -1);
  kept.Want("b", "rule x");
  kept.Want("a", "rule y");
  EXPECT_THAT(Texts(Facts(kept.TakeWanted())),
              ElementsAre("tokens|a why|rule y",
                          "tokens|a 000018|[[18, 7, -0.5, 2, 18], [19, 7, "
                          "-0.5, 2, 19], [20, 7, NaN, 2, 22]]"));
  EXPECT_THAT(kept.TakeWanted(), SizeIs(0));
}

TEST(RequestTokensTest, AFlagTakesTheIdOrTheNameThatTheClientGave) {
  RequestTokens kept;
  EXPECT_THAT(kept.Flag("a").detail(), HasSubstr("flight.tokens"));
  kept.SetLimits(8, 8);
  EXPECT_THAT(kept.Flag("a").detail(), HasSubstr("there was none yet"));
  kept.Add("cmpl-slow-1-0-5e", {0, 7, -0.5, 2, 4});
  kept.Add("cmpl-slow-2-0-5f", {0, 7, -0.5, 2, 5});
  const v1::RequestFlagged found = kept.Flag("slow-1");
  EXPECT_EQ(found.request(), "slow-1");
  EXPECT_EQ(found.step(), 4);
  EXPECT_EQ(found.detail(), "cmpl-slow-1-0-5e: 1 token");
  EXPECT_THAT(Facts(kept.TakeWanted()), SizeIs(2));
  const v1::RequestFlagged unknown = kept.Flag("slow-3");
  EXPECT_EQ(unknown.step(), -1);
  EXPECT_EQ(unknown.detail(),
            "no such request: 2 requests in memory, the newest are "
            "cmpl-slow-2-0-5f, cmpl-slow-1-0-5e");
}

TEST(RequestTokensTest, LongHistoriesFitIntoFacts) {
  RequestTokens kept;
  kept.SetLimits(1, 16384);
  for (int64_t i = 0; i < 16384; ++i)
    kept.Add("a", {i, 123456, -12.3456789, 10.3456789, 1000000 + i});
  kept.Flag("a");
  for (const v1::RunFact& fact : Facts(kept.TakeWanted()))
    EXPECT_LE(fact.value().size(), 4096u);
}

class TokenRulesTest : public ::testing::Test {
 protected:
  TokenRulesTest()
      : watcher_(&clock_, [this](v1::AgentEvent event) {
          events_.push_back(std::move(event));
        }) {}

  void Configure(const char* json) {
    const auto spec = ParseTriggerSpec(json);
    ASSERT_TRUE(spec.ok()) << spec.status();
    watcher_.Configure(*spec);
  }

  void Step(int64_t step, const std::vector<std::string>& requests) {
    watcher_.BeginStep(step);
    for (const std::string& request : requests) {
      watcher_.OnToken(
          request, {.index = step, .id = step, .logprob = -1, .entropy = 2});
    }
    auto buffer = std::make_unique<RecordBuffer>();
    buffer->batch()->set_step(step);
    buffer->Add()->set_order(0);
    v1::Record* const end = buffer->Add();
    end->set_order(1);
    end->mutable_step_end();
    watcher_.KeepFlight(std::move(buffer));
    watcher_.EndStep();
  }

  ManualClock clock_;
  std::vector<v1::AgentEvent> events_;
  TriggerWatcher watcher_;
};

TEST_F(TokenRulesTest, ARuleNamesTheRequestTheTokenAndTheStep) {
  Configure(R"({"flight": {"steps": 2}, "rules": [
      {"name": "bad", "token_nan": {}},
      {"name": "flat", "token_entropy": {"above": 1, "tokens": 3},
       "entry_contains": "b"}]})");
  EXPECT_TRUE(watcher_.wants_tokens());
  watcher_.BeginStep(7);
  watcher_.OnToken("a", {.index = 37, .id = 5, .logprob = -1, .entropy = 2});
  EXPECT_THAT(events_, SizeIs(0));
  EXPECT_THAT(watcher_.TakeTokens(), SizeIs(0));
  watcher_.OnToken("a", {.index = 38,
                         .id = 5,
                         .logprob = std::numeric_limits<double>::quiet_NaN(),
                         .entropy = 2});
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].fired().rule(), "bad");
  EXPECT_EQ(events_[0].fired().entry(), "a");
  EXPECT_EQ(events_[0].fired().step(), 7);
  EXPECT_EQ(events_[0].fired().detail(), "token 38: log probability NaN");
  EXPECT_THAT(Texts(watcher_.TakeTokens()),
              ElementsAre("tokens|a why|rule bad: token 38: log probability "
                          "NaN",
                          "tokens|a 000037|[[37, 5, -1, 2, 7], [38, 5, NaN, 2, "
                          "7]]"));
  for (int64_t i = 0; i < 3; ++i)
    watcher_.OnToken("b", {.index = i, .id = i, .logprob = -1, .entropy = 2});
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_EQ(events_[1].fired().detail(), "tokens 0 to 2: entropy 2, above 1");
}

TEST_F(TokenRulesTest, AFlaggedRequestIsInItsLastStepOfTheFlight) {
  Configure(R"({"flight": {"steps": 4, "level": "tokens", "tokens": 8}})");
  for (int64_t step = 0; step < 3; ++step) Step(step, {"a", "b"});
  Step(3, {"b"});
  EXPECT_EQ(watcher_.FlagRequest("a").step(), 2);
  const auto flight = watcher_.TakeRequestedFlight();
  ASSERT_TRUE(flight.has_value());
  ASSERT_THAT(flight->buffers, SizeIs(4));
  EXPECT_EQ(flight->buffers[3]->batch()->records_size(), 2);
  const v1::RecordBatch& its = *flight->buffers[2]->batch();
  ASSERT_EQ(its.records_size(), 3);
  EXPECT_EQ(its.records(1).order(), 1u);
  EXPECT_EQ(its.records(1).run_card().facts_size(), 2);
  // The end counts what is before it.
  EXPECT_EQ(its.records(2).order(), 2u);
  EXPECT_TRUE(its.records(2).has_step_end());
  // The memory is empty: the next step takes them.
  EXPECT_EQ(watcher_.FlagRequest("a").step(), 2);
  EXPECT_FALSE(watcher_.TakeRequestedFlight().has_value());
  EXPECT_THAT(watcher_.TakeTokens(), SizeIs(2));
}

TEST_F(TokenRulesTest, OfARequestWithoutAStepTheLastOneHasTheTokens) {
  Configure(R"({"flight": {"steps": 2, "level": "tokens", "tokens": 8}})");
  Step(0, {"a"});
  for (int64_t step = 1; step < 4; ++step) Step(step, {"b"});
  watcher_.FlagRequest("a");
  const auto flight = watcher_.TakeRequestedFlight();
  ASSERT_TRUE(flight.has_value());
  EXPECT_EQ(flight->first_step, 2);
  EXPECT_EQ(flight->buffers.back()->batch()->records_size(), 3);
}

TEST_F(TokenRulesTest, WithoutARuleOrANumberNothingIsKept) {
  Configure(R"({"flight": {"steps": 4}})");
  EXPECT_FALSE(watcher_.wants_tokens());
  Step(0, {"a"});
  EXPECT_EQ(watcher_.FlagRequest("a").step(), -1);
}

}  // namespace
}  // namespace rankprobe
