// SPDX-License-Identifier: Apache-2.0
#include "collector/control/explain.h"

#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() {
    facts_.identity = testing::MakeIdentity("run", 1, 11);
    facts_.connected = true;
    facts_.step = 9;
    spec_.set_epoch(4);
    spec_.set_enabled(true);
    spec_.set_effective_at_step(5);
    spec_.set_config_json(R"({"dump_path": "d", "risk_level": "ALL"})");
  }

  void Call(v1::CallTrace::Kind kind, const std::string& entry) {
    if (!facts_.report.has_value()) {
      facts_.report.emplace();
      facts_.report->set_step(9);
    }
    v1::CallTrace::Item* item = facts_.report->mutable_calls()->add_items();
    item->set_kind(kind);
    item->set_entry(entry);
  }

  v1::RankExplanation Explain() {
    const auto plan = RunPlans::Compile(spec_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return ExplainRank(question_, *plan, facts_);
  }

  static v1::Explanation Stage(const v1::RankExplanation& rank,
                               const std::string& name) {
    for (const v1::Explanation& stage : rank.stages()) {
      if (stage.stage() == name) return stage;
    }
    ADD_FAILURE() << "no stage " << name;
    return {};
  }

  v1::PlanSpec spec_;
  ExplainQuestion question_;
  RankFacts facts_;
};

TEST_F(ExplainTest, EachStageThatStopsARankIsNamed) {
  facts_.connected = false;
  facts_.silent_ms = 3000;
  EXPECT_THAT(Stage(Explain(), "connected").reason(), HasSubstr("3 s ago"));
  facts_.connected = true;
  EXPECT_FALSE(ExplainRank(question_, nullptr, facts_).stages(1).passes());
  EXPECT_TRUE(Stage(Explain(), "enabled").passes());
  spec_.set_enabled(false);
  EXPECT_FALSE(Stage(Explain(), "enabled").passes());
  spec_.set_enabled(true);
  spec_.set_effective_at_step(11);
  EXPECT_THAT(Stage(Explain(), "enabled").reason(),
              HasSubstr("begins at step 11"));
  spec_.set_effective_at_step(5);
  spec_.set_for_steps(3);
  EXPECT_THAT(Stage(Explain(), "enabled").reason(), HasSubstr("from 5 to 7"));
  question_.step = 7;
  EXPECT_TRUE(Stage(Explain(), "enabled").passes());
  spec_.set_config_json(R"({"dump_path": "d", "rank": [0], "step": [3]})");
  EXPECT_FALSE(Stage(Explain(), "rank").passes());
  EXPECT_FALSE(Stage(Explain(), "step").passes());
  question_.step = 3;
  EXPECT_TRUE(Stage(Explain(), "step").passes());
  spec_.set_config_json(
      R"({"dump_path": "d", "statistics": {"request_id": "slow-1"}})");
  EXPECT_THAT(Stage(Explain(), "request").reason(),
              HasSubstr("of steps with request \"slow-1\" its rows"));
  facts_.degrade = 1;
  EXPECT_THAT(Stage(Explain(), "budget").reason(), HasSubstr("no tensors"));
}

TEST_F(ExplainTest, AFunctionThatTheOperatorsListDoesNotNameIsSaid) {
  const v1::RankExplanation rank = Explain();
  for (const v1::Explanation& stage : rank.stages())
    EXPECT_NE(stage.stage(), "functions") << "there is no list";
  facts_.api_list = "functional:\n- relu\n";
  EXPECT_TRUE(Stage(Explain(), "functions").passes());
  for (const char* call :
       {"relu", "Functional.relu", "Functional.relu.0.forward",
        "Functional.relu.12.backward", "Module.a.A.forward.0"}) {
    question_.call = call;
    EXPECT_TRUE(Stage(Explain(), "functions").passes()) << call;
  }
  question_.call = "Torch.abs.0.forward";
  const v1::Explanation said = Stage(Explain(), "functions");
  EXPECT_FALSE(said.passes());
  EXPECT_THAT(said.reason(), HasSubstr("does not name \"abs\""));
}

TEST_F(ExplainTest, EachCallHasItsVerdictInOrder) {
  spec_.set_config_json(
      R"({"dump_path": "d", "level": "L1", "task": "tensor",
          "tensor": {"scope": ["Torch.add.0.forward", "Torch.mul.0.forward"],
                     "list": ["add", "mul"]}})");
  Call(v1::CallTrace::KIND_API, "Torch.mul.9.forward");
  Call(v1::CallTrace::KIND_API, "Torch.add.0.forward");
  Call(v1::CallTrace::KIND_MODULE_BEGIN, "Module.a.A.forward.0");
  Call(v1::CallTrace::KIND_API, "Torch.relu.0.forward");
  Call(v1::CallTrace::KIND_MODULE_END, "Module.a.A.forward.0");
  Call(v1::CallTrace::KIND_API, "Torch.mul.0.forward");
  Call(v1::CallTrace::KIND_API, "Torch.add.1.forward");
  const v1::RankExplanation rank = Explain();
  std::vector<std::string> verdicts;
  for (const v1::CallExplanation& call : rank.calls())
    verdicts.push_back(call.captured() ? "yes" : call.stage());
  EXPECT_THAT(verdicts, ::testing::ElementsAre("scope", "yes", "level", "list",
                                               "yes", "scope"));
  EXPECT_TRUE(rank.calls(1).with_payload());
  EXPECT_EQ(rank.calls_known(), 6u);
  question_.call = "add";
  EXPECT_EQ(Explain().calls_size(), 2);
  question_.call = "nothing";
  EXPECT_THAT(Stage(Explain(), "hooked").reason(),
              HasSubstr("none of the 6 calls"));
  question_.call = "";
  question_.max_calls = 2;
  EXPECT_EQ(Explain().calls_size(), 2);
  EXPECT_EQ(Explain().calls_matched(), 6u);
}

TEST_F(ExplainTest, WithoutCallsANameIsJudgedAlone) {
  question_.call = "Torch.relu.0.forward";
  spec_.set_config_json(R"({"dump_path": "d", "level": "L0"})");
  const v1::RankExplanation rank = Explain();
  EXPECT_FALSE(Stage(rank, "hooked").passes());
  ASSERT_EQ(rank.calls_size(), 1);
  EXPECT_EQ(rank.calls(0).stage(), "level");
  EXPECT_THAT(rank.calls(0).reason(), HasSubstr("records modules"));
}

}  // namespace
}  // namespace rankprobe
