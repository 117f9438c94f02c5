// SPDX-License-Identifier: Apache-2.0
#include "collector/control/control_plane.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/testing/switch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FakeRank;
using ::testing::HasSubstr;
using testing::HelloOf;
using ::testing::Not;

using ControlPlaneTest = testing::SwitchFixture;

TEST_F(ControlPlaneTest, AllRanksSwitchOnTheAnnouncedStep) {
  FakeRank ranks[3];
  for (int r = 0; r < 3; ++r) Join(r, &ranks[r]);
  for (int r = 0; r < 3; ++r) BeginStep(&ranks[r], 10 + r);
  Enable();
  for (FakeRank& rank : ranks) Deliver(&rank);
  EXPECT_FALSE(result_.has_value());
  for (FakeRank& rank : ranks) Deliver(&rank);
  for (int64_t step = 13; step < 18; ++step) {
    for (FakeRank& rank : ranks) BeginStep(&rank, step);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  const v1::SwitchResult& result = **result_;
  EXPECT_EQ(result.summary(),
            absl::StrCat("3/3 ranks at step ", result.effective_at_step()));
  EXPECT_GT(result.effective_at_step(), 12);
  for (const FakeRank& rank : ranks) {
    EXPECT_EQ(rank.applied_at, result.effective_at_step());
  }
}

TEST_F(ControlPlaneTest, ARankThatHasPassedMeansALaterStep) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  Enable();
  BeginStep(&ranks[0], 50);  // before the prepare arrives
  for (int i = 0; i < 4; ++i) {
    for (FakeRank& rank : ranks) Deliver(&rank);
  }
  for (FakeRank& rank : ranks) Deliver(&rank);
  for (int64_t step = 51; step < 60; ++step) {
    for (FakeRank& rank : ranks) BeginStep(&rank, step);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->attempts(), 2u);
  EXPECT_GT((*result_)->effective_at_step(), 50);
  EXPECT_EQ(ranks[1].applied_at, (*result_)->effective_at_step());
}

// The slowest answer used up the time that the commit requires: a commit now
// would switch some ranks and not others.
TEST_F(ControlPlaneTest, NoCommitThatWouldComeTooLate) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  for (FakeRank& rank : ranks) BeginStep(&rank, 10);
  Enable();
  Deliver(&ranks[0]);
  ASSERT_TRUE(ranks[0].prepared.has_value());
  const int64_t first = ranks[0].prepared->effective_at_step();
  BeginStep(&ranks[0], first - 1);
  Deliver(&ranks[1]);
  // The first messages are abort and prepare; the commit follows.
  for (int i = 0; i < 2; ++i) {
    for (FakeRank& rank : ranks) Deliver(&rank);
  }
  for (FakeRank& rank : ranks) {
    ASSERT_TRUE(rank.prepared.has_value());
    EXPECT_GT(rank.prepared->effective_at_step(), first);
    Deliver(&rank);
    EXPECT_TRUE(rank.committed);
  }
  for (int64_t step = first; step < first + 10; ++step) {
    for (FakeRank& rank : ranks) BeginStep(&rank, step);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->attempts(), 2u);
  EXPECT_EQ(ranks[0].applied_at, ranks[1].applied_at);
}

TEST_F(ControlPlaneTest, ACommitThatIsLateForAllMeansALaterStep) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  for (FakeRank& rank : ranks) BeginStep(&rank, 10);
  Enable();
  for (FakeRank& rank : ranks) Deliver(&rank);
  ASSERT_TRUE(ranks[0].prepared.has_value());
  const int64_t first = ranks[0].prepared->effective_at_step();
  // Before the collector receives it and before the commit arrives.
  for (FakeRank& rank : ranks) rank.step = first;
  for (FakeRank& rank : ranks) Deliver(&rank);
  for (int i = 0; i < 2; ++i) {
    for (FakeRank& rank : ranks) Deliver(&rank);
  }
  for (int64_t step = first + 1; step < first + 10; ++step) {
    for (FakeRank& rank : ranks) BeginStep(&rank, step);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->attempts(), 2u);
  EXPECT_GT((*result_)->effective_at_step(), first);
  for (const FakeRank& rank : ranks)
    EXPECT_EQ(rank.applied_at, (*result_)->effective_at_step());
}

TEST_F(ControlPlaneTest, SilenceCallsTheSwitchOff) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  Enable();
  Deliver(&ranks[0]);
  clock_.Advance(absl::Seconds(11));
  control_->Tick();
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->ranks(1).state(), v1::RankSwitch::STATE_SILENT);
  Deliver(&ranks[0]);
  EXPECT_FALSE(ranks[0].prepared.has_value()) << "aborted";
  EXPECT_FALSE(control_->plans().GetConfig("run")->enabled())
      << "the old plan stays";
}

TEST_F(ControlPlaneTest, LostRanksDoNotHoldTheOthers) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  Enable();
  Deliver(&ranks[0]);
  control_->agents().Disconnected(ranks[1].session, "gone");
  Deliver(&ranks[0]);
  for (int64_t step = 1; step < 9; ++step) BeginStep(&ranks[0], step);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_THAT((*result_)->summary(), HasSubstr("1/2 ranks"));
  EXPECT_EQ((*result_)->ranks(1).state(), v1::RankSwitch::STATE_LOST);
}

TEST_F(ControlPlaneTest, LateJoinersAndRestartsGetThePlan) {
  FakeRank rank, late;
  Join(0, &rank);
  Enable();
  Deliver(&rank);
  Deliver(&rank);
  for (int64_t step = 1; step < 9; ++step) BeginStep(&rank, step);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  const v1::Welcome welcome = Join(1, &late);
  EXPECT_TRUE(welcome.plan().enabled());
  EXPECT_EQ(welcome.plan().epoch(), (*result_)->epoch());
  Restart();
  EXPECT_EQ(Join(1, &late).plan().epoch(), (*result_)->epoch());
}

// Found by tests/sim, seed 193: a rank records under its plan while the
// collector is unreachable. The restarted collector knew only the newest plan,
// gave out another, and dropped the records that the rank then sent.
TEST_F(ControlPlaneTest, StepsOfAPlanOfBeforeTheLastStartAreTaken) {
  FakeRank rank;
  Join(0, &rank);
  Enable();
  Deliver(&rank);
  Deliver(&rank);
  for (int64_t step = 1; step < 9; ++step) BeginStep(&rank, step);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  const v1::Identity identity = testing::MakeIdentity("run", 0, 100);
  ASSERT_EQ((*result_)->epoch(), 2u);
  EXPECT_FALSE(control_->gate().Admits(identity, 3, 1)) << "that plan was off";
  Restart();
  Join(0, &rank);
  EXPECT_TRUE(control_->gate().Admits(identity, 3, 1))
      << "what it was nobody knows";
  EXPECT_TRUE(control_->gate().Admits(identity, 8, 2));
  EXPECT_FALSE(control_->gate().Admits(identity, 8, 3)) << "there was none";
}

TEST_F(ControlPlaneTest, ASubsetLeavesTheOthersAlone) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  v1::SwitchOptions options;
  options.add_ranks(1);
  Enable(options);
  EXPECT_TRUE(ranks[0].inbox.empty());
  Deliver(&ranks[1]);
  Deliver(&ranks[1]);
  FakeRank again;
  control_->agents().Disconnected(ranks[0].session, "");
  control_->agents().Disconnected(ranks[1].session, "");
  EXPECT_FALSE(Join(0, &again, 900).plan().enabled());
  EXPECT_TRUE(Join(1, &again, 901).plan().enabled());
  Restart();
  EXPECT_FALSE(Join(0, &again, 902).plan().enabled());
  EXPECT_TRUE(Join(1, &again, 903).plan().enabled()) << "kept over a restart";
}

TEST_F(ControlPlaneTest, BadRequestsChangeNothing) {
  FakeRank rank;
  Join(0, &rank);
  BeginStep(&rank, 7);
  Enable({}, R"({"task": "bogus"})");
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kInvalidArgument);
  v1::SwitchOptions options;
  options.set_at_step(7);
  Enable(options);
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kFailedPrecondition);
  Enable({}, "", 999);
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kAborted);
  options.Clear();
  options.add_ranks(5);
  Enable(options);
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(rank.inbox.empty());
  EXPECT_FALSE(control_->plans().GetConfig("run")->enabled());
}

// No rank receives an invalid list, whoever sends it.
TEST_F(ControlPlaneTest, AListOfFunctionsIsReadBeforeAnybodyHearsOfIt) {
  FakeRank rank;
  Join(0, &rank);
  BeginStep(&rank, 10);
  const auto set_list = [&](const std::string& list) {
    v1::SetConfigRequest request;
    request.set_run("run");
    request.set_config_json(std::string(DefaultConfigJson()));
    request.set_api_list(list);
    result_.reset();
    control_->plans().SetConfig(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); });
    while (!rank.inbox.empty()) Deliver(&rank);
    const int64_t until = rank.step + 10;
    while (rank.step < until) BeginStep(&rank, rank.step + 1);
  };
  const uint64_t epoch = control_->plans().GetConfig("run")->epoch();
  set_list("functional: [relu]");
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result_->status().message()),
              HasSubstr("the API list: line 1"));
  EXPECT_EQ(control_->plans().GetConfig("run")->epoch(), epoch);
  set_list("functional:\n- relu\n");
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ(control_->plans().GetConfig("run")->api_list(),
            "functional:\n- relu\n");

  // A hypothetical config would keep the list.
  v1::ExplainRequest question;
  question.set_run("run");
  question.set_call("Torch.abs.0.forward");
  question.set_config_json(std::string(DefaultConfigJson()));
  std::vector<std::string> failed;
  control_->explanations().Explain(
      question, [&](absl::StatusOr<v1::ExplainResponse> said) {
        ASSERT_TRUE(said.ok());
        for (const v1::Explanation& stage : said->ranks(0).stages())
          if (!stage.passes()) failed.push_back(stage.stage());
      });
  clock_.Advance(absl::Seconds(10));
  control_->Tick();
  EXPECT_THAT(failed, ::testing::Contains("functions"));
}

// A dump counts a process without a rank as rank 0.
TEST_F(ControlPlaneTest, AProcessWithoutARankIsExplainedAsRankZero) {
  FakeRank process;
  Join(-1, &process);
  const auto explain = [&](int64_t rank) {
    v1::ExplainRequest question;
    question.set_run("run");
    question.set_rank(rank);
    v1::ExplainResponse answer;
    control_->explanations().Explain(
        question,
        [&](absl::StatusOr<v1::ExplainResponse> said) { answer = *said; });
    clock_.Advance(absl::Seconds(10));
    control_->Tick();
    return answer;
  };
  EXPECT_EQ(explain(0).ranks_size(), 1);
  v1::ExplainResponse other = explain(1);
  EXPECT_EQ(other.ranks_size(), 0);
  EXPECT_EQ(other.stages(0).reason(),
            "rank 1 is not connected; the processes of the run have no rank: "
            "leave out --rank");
  control_->agents().Disconnected(process.session, "");
  other = explain(1);
  EXPECT_THAT(other.stages(0).reason(), ::testing::EndsWith("leave out --rank"))
      << "it is known, although it has ended";
  FakeRank rank;
  Join(3, &rank);
  EXPECT_EQ(explain(0).ranks_size(), 0);
}

// A dump of three steps does not become endless.
TEST_F(ControlPlaneTest, StepsOutOfRange) {
  FakeRank rank;
  Join(0, &rank);
  v1::SwitchOptions options;
  options.set_at_step(INT64_MAX);
  Enable(options);
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kInvalidArgument);
  options.Clear();
  options.set_for_steps(-1);
  Enable(options);
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kInvalidArgument);
  // A rank that reports the last possible step has no step left to switch at.
  BeginStep(&rank, INT64_MAX);
  Enable();
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kInvalidArgument);
  BeginStep(&rank, INT64_MIN);
  Enable();
  EXPECT_FALSE(result_.has_value()) << "waits for the rank's answer";
}

TEST_F(ControlPlaneTest, TwoOperatorsAtOnce) {
  FakeRank rank;
  Join(0, &rank);
  Enable();
  EXPECT_FALSE(result_.has_value());
  const auto first = std::move(result_);
  Enable();
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(result_->status().code(), absl::StatusCode::kAborted);
}

TEST_F(ControlPlaneTest, AProcessMayBeginItsNextSessionBeforeTheEndOfTheLast) {
  const auto admit = [&](uint64_t incarnation, const std::string& job) {
    v1::Hello hello = HelloOf("run", 3, incarnation);
    hello.mutable_identity()->set_job(job);
    return control_->agents()
        .Admit(hello, [](const v1::Directive&) {})
        .status();
  };
  EXPECT_TRUE(admit(1, "job").ok());
  EXPECT_TRUE(admit(2, "job").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(admit(3, "another")));
  EXPECT_TRUE(absl::IsAlreadyExists(admit(4, "")));
}

TEST_F(ControlPlaneTest, TwoProcessesCannotBeOneRank) {
  FakeRank rank, other;
  Join(3, &rank);
  const auto second = control_->agents().Admit(HelloOf("run", 3, 555),
                                               [](const v1::Directive&) {});
  ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  const std::string message(second.status().message());
  EXPECT_THAT(message, HasSubstr("rank 3"));
  EXPECT_THAT(message, HasSubstr("process 1003 on host"));
  EXPECT_THAT(message, Not(HasSubstr(absl::StrCat(absl::Hex(103)))))
      << "an incarnation is nobody else's business";
  Join(3, &other, 103);  // the same incarnation, over a new connection
  control_->agents().Disconnected(other.session, "");
  Join(3, &other, 555);  // a restart
}

TEST_F(ControlPlaneTest, HostileHellosAreRefused) {
  const auto code = [&](const std::function<void(v1::Hello*)>& change) {
    v1::Hello hello = HelloOf("run", 0, 1);
    change(&hello);
    return control_->agents()
        .Admit(hello, [](const v1::Directive&) {})
        .status()
        .code();
  };
  using absl::StatusCode;
  EXPECT_EQ(code([](v1::Hello* h) { h->set_protocol(2); }),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](v1::Hello* h) { h->mutable_identity()->set_run(""); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](v1::Hello* h) {
              h->mutable_identity()->set_run(std::string(256, 'r'));
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](v1::Hello* h) { h->mutable_identity()->set_rank(-1); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      code([](v1::Hello* h) { h->mutable_identity()->set_incarnation(0); }),
      StatusCode::kInvalidArgument);
}

// The new session of a process replaces the old one while a switch still waits
// for it.
TEST_F(ControlPlaneTest, AReconnectDuringASwitchLeavesNoGhostAndIsTold) {
  FakeRank ranks[2], again;
  for (int r = 0; r < 2; ++r) {
    Join(r, &ranks[r]);
    BeginStep(&ranks[r], 3);
  }
  Enable();
  Join(1, &again);
  // Rank 0 has passed the step, so the collector prepares all ranks again.
  BeginStep(&ranks[0], 50);
  while (!ranks[0].inbox.empty()) Deliver(&ranks[0]);
  for (int64_t step = 51; step < 60; ++step) {
    BeginStep(&ranks[0], step);
    while (!ranks[0].inbox.empty()) Deliver(&ranks[0]);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  ASSERT_EQ((*result_)->ranks_size(), 2);
  EXPECT_EQ((*result_)->ranks(0).state(), v1::RankSwitch::STATE_APPLIED);
  EXPECT_EQ((*result_)->ranks(1).state(), v1::RankSwitch::STATE_LOST);
  EXPECT_EQ(control_->agents().List("").agents_size(), 2);
  control_->agents().Shutdown();  // sends a goodbye to every rank
}

// Whatever the order of messages and steps: a rank that is reported as applied
// used the announced epoch, at the announced step or, if named as late, after
// it.
TEST_F(ControlPlaneTest, ReportedSwitchesHappenedAsReported) {
  std::mt19937 random(17);
  FakeRank ranks[4];
  for (int r = 0; r < 4; ++r) Join(r, &ranks[r]);
  int full = 0;
  for (int round = 0; round < 300; ++round) {
    Enable();
    for (int i = 0; !result_.has_value(); ++i) {
      FakeRank& rank = ranks[random() % 4];
      if (random() % 3 == 0) {
        BeginStep(&rank, rank.step + 1);
      } else {
        Deliver(&rank);
      }
      if (i > 20000) clock_.Advance(absl::Seconds(1));
      if (i % 50 == 0) control_->Tick();
    }
    ASSERT_TRUE(result_->ok()) << result_->status();
    for (const v1::RankSwitch& r : (*result_)->ranks()) {
      if (r.state() != v1::RankSwitch::STATE_APPLIED) continue;
      EXPECT_EQ(ranks[r.rank()].applied_at, r.applied_step());
      if (r.applied_step() != (*result_)->effective_at_step()) {
        EXPECT_THAT(r.reason(), HasSubstr("it follows from step"));
        EXPECT_THAT((*result_)->summary(),
                    HasSubstr(absl::StrCat("rank ", r.rank(), " at step ",
                                           r.applied_step())));
      }
      EXPECT_EQ(ranks[r.rank()].epoch, (*result_)->epoch());
    }
    if ((*result_)->summary().substr(0, 3) == "4/4") ++full;
    for (FakeRank& rank : ranks) {
      while (!rank.inbox.empty()) Deliver(&rank);
    }
  }
  // The schedule is harsh, but most switches must still succeed.
  EXPECT_GT(full, 150);
}

}  // namespace
}  // namespace rankprobe
