// SPDX-License-Identifier: Apache-2.0
// A leaf's thread and a root's service, over loopback.
#include "collector/server/root_link.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/rpc/leaf_questions.h"
#include "collector/rpc/root_service.h"
#include "collector/server/leaf_answers.h"
#include "collector/testing/control_fixture.h"
#include "common/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr char kLeaf[] = "0123456789abcdef0123456789abcdef";

class RootLinkTest : public testing::ControlFixture {
 protected:
  void StartRoot() {
    registry_ = std::make_unique<LeafRegistry>(
        LeafRegistry::Options(),
        MonotonicNow() - absl::ToChronoNanoseconds(LeafRegistry::kSettling));
    LeafQuestions::Options questions;
    questions.settling = absl::ZeroDuration();
    questions.part_time = part_time_;
    questions_ = std::make_unique<LeafQuestions>(questions, MonotonicNow());
    service_ = std::make_unique<RootService>(
        registry_.get(), questions_.get(), &control_->agents(), &logger_,
        std::make_shared<Authorizer>(std::nullopt, false), nullptr);
    grpc::ServerBuilder builder;
    int bound = 0;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_),
                             grpc::InsecureServerCredentials(), &bound);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    port_ = bound;
  }
  void EndRoot() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  RootLink::Options OptionsOf(const std::string& leaf) {
    RootLink::Options options;
    options.root = absl::StrCat("127.0.0.1:", port_);
    options.leaf = leaf;
    options.address = "127.0.0.1:4";
    options.max_ranks = 8;
    options.agents = [this] { return agents_; };
    options.relay = &relay_;
    options.say = [this](const std::string& session,
                         const v1::Directive& directive) {
      absl::MutexLock lock(&mutex_);
      said_[session].push_back(directive);
    };
    options.healthy = [this] { return healthy_.load(); };
    options.runs = [] { return std::vector<std::string>{"b", "a"}; };
    options.answer = [this](v1::LiveQuestion question) {
      if (answers_ != nullptr) answers_->Answer(std::move(question));
    };
    options.waiting = [this] {
      return answers_ == nullptr ? std::vector<std::string>()
                                 : answers_->Waiting();
    };
    return options;
  }
  bool Await(const std::function<bool()>& there) {
    MonotonicEvent never;
    const MonotonicTime end = MonotonicAfter(absl::Seconds(60));
    while (!there()) {
      if (MonotonicNow() >= end) return false;
      never.WaitFor(absl::Milliseconds(5));
    }
    return true;
  }
  bool IsThere() { return !registry_->LeavesOf("", MonotonicNow()).empty(); }

  // Pushes an event of a rank of this leaf.
  void Push(const std::string& session, v1::AgentEvent event) {
    v1::RelayedEvent relayed;
    relayed.set_session(session);
    *relayed.mutable_event() = std::move(event);
    relay_.Push(std::move(relayed));
  }
  void PushHello(const std::string& session, int64_t rank, int64_t step) {
    v1::AgentEvent event;
    v1::Hello* const hello = event.mutable_hello();
    *hello->mutable_identity() =
        testing::MakeIdentity("run", rank, 100 + static_cast<uint64_t>(rank));
    hello->set_protocol(1);
    hello->set_step(step);
    hello->set_incarnation_secret("secret");
    Push(session, std::move(event));
  }
  void PushStep(const std::string& session, int64_t step) {
    v1::AgentEvent event;
    event.mutable_progress()->set_step(step);
    Push(session, std::move(event));
  }
  // Waits for the next directive to the session.
  v1::Directive NextSaid(const std::string& session) {
    v1::Directive next;
    EXPECT_TRUE(Await([&] {
      absl::MutexLock lock(&mutex_);
      if (said_[session].empty()) return false;
      next = said_[session].front();
      said_[session].pop_front();
      return true;
    })) << session;
    return next;
  }
  int64_t StepOf(int64_t rank) {
    const v1::ListAgentsResponse all = control_->agents().List("run");
    for (const v1::AgentInfo& agent : all.agents())
      if (agent.connected() && agent.identity().rank() == rank)
        return agent.step();
    return -2;
  }

  const Logger logger_{2, Logger::Severity::kError, &clock_};
  RelayQueue relay_;
  absl::Mutex mutex_;
  std::map<std::string, std::deque<v1::Directive>> said_
      ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LeafRegistry> registry_;
  std::unique_ptr<LeafQuestions> questions_;
  std::unique_ptr<LeafAnswers> answers_;
  std::unique_ptr<RootService> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  absl::Duration part_time_ = absl::Seconds(60);
  v1::ListAgentsResponse agents_;
  std::atomic<bool> healthy_{true};
};

TEST_F(RootLinkTest, ARootHearsOfALeafAsLongAsItIsWell) {
  StartRoot();
  v1::AgentInfo* const agent = agents_.add_agents();
  agent->mutable_identity()->set_run("run");
  agent->mutable_identity()->set_rank(3);
  agent->set_connected(true);
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  ASSERT_TRUE(Await([&] { return IsThere(); }));
  EXPECT_EQ(registry_->ListAgents("run", MonotonicNow()).agents_size(), 1);
  // Its disk has failed: ranks have to use other leaves.
  healthy_ = false;
  EXPECT_TRUE(Await([&] { return !IsThere(); }));
  healthy_ = true;
  EXPECT_TRUE(Await([&] { return IsThere(); }));
  link.Stop();
  EXPECT_TRUE(Await([&] { return !IsThere(); }));
  EndRoot();
}

// The root switches ranks of a leaf.
TEST_F(RootLinkTest, WhatRanksAndRootSayComesThrough) {
  StartRoot();
  PushHello("a", 0, 5);
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  PushHello("b", 1, 6);
  PushStep("a", 7);
  ASSERT_TRUE(Await([&] { return StepOf(0) == 7 && StepOf(1) == 6; }));
  v1::SetDumpEnableRequest request;
  request.set_run("run");
  request.set_enable(true);
  absl::Mutex mutex;
  std::optional<absl::StatusOr<v1::SwitchResult>> done;
  control_->plans().SetDumpEnable(request,
                                  [&](absl::StatusOr<v1::SwitchResult> result) {
                                    absl::MutexLock lock(&mutex);
                                    done = std::move(result);
                                  });
  int64_t step = 0;
  for (const char* const session : {"a", "b"}) {
    const v1::Directive prepare = NextSaid(session);
    ASSERT_TRUE(prepare.has_prepare()) << prepare.ShortDebugString();
    step = prepare.prepare().plan().effective_at_step();
    v1::AgentEvent prepared;
    prepared.mutable_prepared()->set_epoch(prepare.prepare().plan().epoch());
    prepared.mutable_prepared()->set_current_step(7);
    prepared.mutable_prepared()->set_accepted(true);
    Push(session, prepared);
  }
  for (const char* const session : {"a", "b"}) {
    const v1::Directive commit = NextSaid(session);
    ASSERT_TRUE(commit.has_commit()) << commit.ShortDebugString();
    v1::AgentEvent applied;
    applied.mutable_applied()->set_epoch(commit.commit().epoch());
    applied.mutable_applied()->set_step(step);
    Push(session, applied);
  }
  ASSERT_TRUE(Await([&] {
    absl::MutexLock lock(&mutex);
    return done.has_value();
  }));
  {
    absl::MutexLock lock(&mutex);
    ASSERT_TRUE(done->ok()) << done->status();
    EXPECT_EQ((*done)->summary(), absl::StrCat("2/2 ranks at step ", step));
  }
  // A rank that connects later gets the plan, too.
  PushHello("c", 2, 8);
  EXPECT_TRUE(NextSaid("c").has_adopt());
  // A rank that disconnects is reported as disconnected.
  v1::RelayedEvent gone;
  gone.set_session("a");
  gone.set_gone("it broke");
  relay_.Push(gone);
  EXPECT_TRUE(Await([&] { return StepOf(0) == -2; }));
  link.Stop();
  EXPECT_TRUE(Await([&] { return StepOf(1) == -2 && StepOf(2) == -2; }))
      << "its leaf has disconnected";
  EndRoot();
}

// Two starts of a program without a rank, with one name of the run.
TEST_F(RootLinkTest, AProcessIsToldOfAnotherJobOfItsName) {
  StartRoot();
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  for (const uint64_t incarnation : {11u, 12u}) {
    v1::AgentEvent event;
    *event.mutable_hello()->mutable_identity() =
        testing::MakeIdentity("run", /*rank=*/-1, incarnation);
    event.mutable_hello()->set_protocol(1);
    Push(absl::StrCat(incarnation), std::move(event));
  }
  const v1::Directive said = NextSaid("12");
  ASSERT_TRUE(said.has_other()) << said.ShortDebugString();
  EXPECT_EQ(said.other().identity().incarnation(), 11u);
  EXPECT_TRUE(said.other().connected());
  link.Stop();
  EndRoot();
}

// Another root, which knows no ranks.
TEST_F(RootLinkTest, ARootThatBeginsIsToldWhereRanksAre) {
  StartRoot();
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  PushHello("a", 0, 5);
  PushStep("a", 9);
  ASSERT_TRUE(Await([&] { return StepOf(0) == 9; }));
  EndRoot();
  Restart();
  StartRoot();
  EXPECT_TRUE(Await([&] { return StepOf(0) == 9; }));
  link.Stop();
  EndRoot();
}

// The same rank as another live process, through another leaf.
TEST_F(RootLinkTest, ASecondProcessOfARankIsToldToGo) {
  StartRoot();
  PushHello("a", 0, 5);
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  ASSERT_TRUE(Await([&] { return StepOf(0) == 5; }));
  v1::AgentEvent event;
  *event.mutable_hello()->mutable_identity() =
      testing::MakeIdentity("run", 0, 999);
  event.mutable_hello()->set_protocol(1);
  Push("other", event);
  const v1::Directive said = NextSaid("other");
  ASSERT_TRUE(said.has_goodbye());
  EXPECT_THAT(said.goodbye().reason(), ::testing::HasSubstr("is claimed by"));
  EXPECT_EQ(StepOf(0), 5);
  link.Stop();
  EndRoot();
}

TEST_F(RootLinkTest, ARootThatWasStartedAgainIsFound) {
  StartRoot();
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  ASSERT_TRUE(Await([&] { return IsThere(); }));
  EndRoot();
  StartRoot();
  EXPECT_TRUE(Await([&] { return IsThere(); }));
  link.Stop();
  EndRoot();
}

TEST_F(RootLinkTest, ALeafThatIsRefusedTriesAgainAndStops) {
  StartRoot();
  RootLink link(OptionsOf("no name of a leaf"), &logger_);
  link.Start();
  RootLink good(OptionsOf(kLeaf), &logger_);
  good.Start();
  ASSERT_TRUE(Await([&] { return IsThere(); }));
  EXPECT_EQ(registry_->LeavesOf("", MonotonicNow()).size(), 1u);
  EndRoot();
}

auto Holds(bool more) {
  return ::testing::Truly([more](const absl::StatusOr<bool>& status) {
    return status.ok() && *status == more;
  });
}

class LiveQuestionTest : public RootLinkTest {
 protected:
  // Starts a leaf whose archive is store_, with one step and a payload of some
  // MiB.
  std::unique_ptr<RootLink> StartLeaf(bool answers) {
    testing::Frames frames(testing::MakeIdentity("run", 0, 7));
    data_ = testing::RandomBytes(1, 8 << 20);
    frames.AddStep(3, data_);
    EXPECT_TRUE(store_->OpenIncarnation(frames.identity()).ok());
    EXPECT_TRUE(store_->Commit(frames.All()).ok());
    if (answers) {
      answers_ = std::make_unique<LeafAnswers>(
          LeafAnswers::Options{absl::StrCat("127.0.0.1:", port_),
                               {},
                               [this](const std::string&, const v1::StepInfo&) {
                                 if (before_look_) before_look_();
                                 return false;
                               }},
          store_.get());
    }
    auto link = std::make_unique<RootLink>(OptionsOf(kLeaf), &logger_);
    link->Start();
    EXPECT_TRUE(Await([&] {
      const auto leaves = questions_->Leaves();
      return leaves.size() == 1 && leaves[0].away.empty();
    }));
    return link;
  }
  static v1::LiveQuestion Steps() {
    v1::LiveQuestion question;
    question.set_run("run");
    question.set_steps(true);
    return question;
  }
  v1::LiveQuestion Payload() const {
    v1::LiveQuestion question;
    question.set_run("run");
    question.mutable_payload()->set_digest(testing::DigestOf(data_));
    question.mutable_payload()->set_length_bytes(data_.size());
    return question;
  }

  std::string data_;
  // Called on a worker of the leaf.
  std::function<void()> before_look_;
};

TEST_F(LiveQuestionTest, ALeafAnswersOnAStreamOfItsOwn) {
  StartRoot();
  const auto link = StartLeaf(/*answers=*/true);
  ASSERT_EQ(*questions_->Leaves()[0].runs,
            (std::vector<std::string>{"a", "b"}));
  auto answer = questions_->Ask(kLeaf, Steps());
  v1::LiveAnswer part;
  ASSERT_THAT(answer->Next(&part), Holds(true));
  ASSERT_EQ(part.steps_size(), 1);
  EXPECT_EQ(part.steps(0).step(), 3);
  ASSERT_THAT(answer->Next(&part), Holds(true));
  EXPECT_THAT(answer->Next(&part), Holds(false));
  // Piece by piece, as it is taken.
  answer = questions_->Ask(kLeaf, Payload());
  std::string got;
  while (true) {
    part.Clear();
    const absl::StatusOr<bool> more = answer->Next(&part);
    ASSERT_TRUE(more.ok()) << more.status();
    if (!*more) break;
    EXPECT_LE(part.ByteSizeLong(), 1u << 20);
    got += part.data();
  }
  EXPECT_TRUE(got == data_);
  // The leaf's error is returned, with its name.
  v1::LiveQuestion other = Payload();
  other.mutable_payload()->set_length_bytes(1);
  answer = questions_->Ask(kLeaf, other);
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = answer->Next(&part);
  EXPECT_TRUE(absl::IsNotFound(more.status())) << more.status();
  EXPECT_THAT(more.status().message(), ::testing::HasSubstr("127.0.0.1:4"));
  EndRoot();
}

// The caller stops reading during an answer: the leaf's worker becomes free
// again.
TEST_F(LiveQuestionTest, AnAnswerThatNobodyWaitsForEnds) {
  StartRoot();
  const auto link = StartLeaf(/*answers=*/true);
  for (int i = 0; i < 20; ++i) {
    auto answer = questions_->Ask(kLeaf, Payload());
    v1::LiveAnswer part;
    ASSERT_THAT(answer->Next(&part), Holds(true));
    ASSERT_FALSE(part.data().empty());
  }
  v1::LiveQuestion records;
  records.set_run("run");
  records.mutable_records()->set_step(3);
  records.mutable_records()->set_incarnation(7);
  auto answer = questions_->Ask(kLeaf, records);
  v1::LiveAnswer part;
  ASSERT_THAT(answer->Next(&part), Holds(true));
  EXPECT_EQ(part.records_size(), 2);
  EndRoot();
}

TEST_F(LiveQuestionTest, ALeafThatHangsIsNamedInTime) {
  part_time_ = absl::Milliseconds(50);
  StartRoot();
  const auto link = StartLeaf(/*answers=*/false);
  auto answer = questions_->Ask(kLeaf, Steps());
  v1::LiveAnswer part;
  const absl::Status status = answer->Next(&part).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), ::testing::HasSubstr("127.0.0.1:4 has not"));
  EndRoot();
}

// A caller that asks all leaves and reads their answers in order waits only
// once.
TEST_F(LiveQuestionTest, ThoseThatHangAreWaitedForTogether) {
  part_time_ = absl::Seconds(2);
  StartRoot();
  const auto link = StartLeaf(/*answers=*/false);
  const MonotonicTime began = MonotonicNow();
  std::vector<std::unique_ptr<LiveLeaves::Answer>> answers;
  for (int i = 0; i < 8; ++i)
    answers.push_back(questions_->Ask(kLeaf, Steps()));
  v1::LiveAnswer part;
  for (const auto& answer : answers)
    EXPECT_TRUE(absl::IsUnavailable(answer->Next(&part).status()));
  // One after another it would be sixteen.
  EXPECT_LT(absl::FromChrono(MonotonicNow() - began), absl::Seconds(14));
  EndRoot();
}

// As many questions as there are workers hang; the next one is reported as
// queued.
TEST_F(LiveQuestionTest, AQuestionThatWaitsForItsTurnIsWaitedFor) {
  // Longer than a busy machine delays the leaf's report that it waits.
  part_time_ = absl::Seconds(6);
  MonotonicEvent go_on;
  before_look_ = [&] { (void)go_on.WaitFor(absl::Seconds(60)); };
  StartRoot();
  const auto link = StartLeaf(/*answers=*/true);
  auto first = questions_->Ask(kLeaf, Steps());
  auto second = questions_->Ask(kLeaf, Steps());
  const auto third = questions_->Ask(kLeaf, Steps());
  ASSERT_TRUE(Await([&] { return answers_->Waiting().size() == 1; }));
  absl::StatusOr<bool> answered = false;
  std::atomic<bool> asks{false};
  std::thread asker([&] {
    asks = true;
    v1::LiveAnswer part;
    answered = third->Next(&part);
  });
  EXPECT_TRUE(Await([&] { return asks.load(); }));
  // These wait for the leaf's disk.
  v1::LiveAnswer part;
  EXPECT_TRUE(absl::IsUnavailable(first->Next(&part).status()));
  first.reset();
  second.reset();
  go_on.Set();
  asker.join();
  EXPECT_THAT(answered, Holds(true));
  EXPECT_THAT(answers_->Waiting(), ::testing::IsEmpty());
  EndRoot();
}

TEST_F(LiveQuestionTest, ALeafThatGoesIsNamedAtOnceAndRemembered) {
  StartRoot();
  const auto link = StartLeaf(/*answers=*/false);
  auto answer = questions_->Ask(kLeaf, Steps());
  link->Stop();
  v1::LiveAnswer part;
  absl::Status status = answer->Next(&part).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), ::testing::HasSubstr("disconnected"));
  ASSERT_TRUE(Await([&] { return !questions_->Leaves()[0].away.empty(); }));
  status = questions_->Ask(kLeaf, Steps())->Next(&part).status();
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr("127.0.0.1:4 disconnected"));
  EndRoot();
}

TEST_F(LiveQuestionTest, AnAnswerToNoQuestionIsRefused) {
  StartRoot();
  const auto stub = v1::RootService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials()));
  for (const std::string& id : {std::string(), std::string(16, 'i')}) {
    grpc::ClientContext context;
    v1::LiveAnswered answered;
    const auto stream = stub->Answer(&context, &answered);
    v1::LiveAnswer part;
    part.set_id(id);
    stream->Write(part);
    stream->WritesDone();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EndRoot();
}

TEST(RootLinkReportTest, ConnectedRanksComeFirstAndTheRestIsCounted) {
  v1::ListAgentsResponse agents;
  for (int i = 0; i < 4000; ++i) {
    v1::AgentInfo* const agent = agents.add_agents();
    agent->mutable_identity()->set_run(std::string(255, 'r'));
    agent->mutable_identity()->set_host(std::string(255, 'h'));
    agent->mutable_identity()->set_rank(i);
    agent->set_connected(i % 2 == 1);
  }
  RootLink::Options options;
  options.leaf = kLeaf;
  options.agents = [&] { return agents; };
  const v1::LeafReport report = RootLink::ReportOf(options);
  EXPECT_LE(report.ByteSizeLong(), 1u << 20);
  EXPECT_GT(report.agents_size(), 1000);
  EXPECT_EQ(report.agents_size() + static_cast<int>(report.agents_left_out()),
            4000);
  for (const v1::AgentInfo& agent : report.agents())
    EXPECT_TRUE(agent.connected());
}

}  // namespace
}  // namespace rankprobe
