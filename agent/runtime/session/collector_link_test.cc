// SPDX-License-Identifier: Apache-2.0
// A session with a collector that the test controls.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/session/session.h"
#include "agent/runtime/session/spool.h"
#include "agent/runtime/session/spool_delivery.h"
#include "common/base/clock.h"
#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"
#include "common/io/file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(30);

// Welcomes one agent, then sends the given directives, and stores what it
// receives about plans.
class FakeCollector final : public v1::AgentService::Service {
 public:
  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::Directive, v1::AgentEvent>*
                           stream) override {
    v1::AgentEvent event;
    if (!stream->Read(&event) || !event.has_hello())
      return grpc::Status::CANCELLED;
    if (IsRefused(context, &asked_, refused_hellos)) return refusal;
    if (connections() <= mute_to) {
      stream->Read(&event);
      return grpc::Status::CANCELLED;
    }
    {
      absl::MutexLock lock(&mutex_);
      stream_ = stream;
      v1::Directive directive;
      directive.mutable_welcome()->set_session_id("session");
      directive.mutable_welcome()->set_credit_bytes(1 << 20);
      directive.mutable_welcome()->set_resume_after_sequence(held_);
      stream->Write(directive);
    }
    while (stream->Read(&event)) {
      absl::MutexLock lock(&mutex_);
      if (event.has_goodbye()) {
        goodbyes_.push_back(event.goodbye());
        stream_ = nullptr;
        return goodbyes_.size() <= deaf_to
                   ? grpc::Status(grpc::StatusCode::DATA_LOSS, "damaged")
                   : grpc::Status::OK;
      }
      if (event.has_ping() && answers) {
        v1::Directive answer;
        answer.mutable_pong();
        stream->Write(answer);
      }
      if (event.has_prepared()) prepared_ = event.prepared();
      if (event.has_applied()) applied_ = event.applied();
    }
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }
  grpc::Status Upload(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::UploadAck, v1::UploadFrame>*
                          stream) override {
    v1::UploadFrame frame;
    v1::UploadAck ack;
    if (IsRefused(context, &uploaded_, refused_uploads)) return refusal;
    ack.set_credit_bytes(1 << 20);
    stream->Write(ack);
    while (stream->Read(&frame)) {
      absl::MutexLock lock(&mutex_);
      read_ = std::max(read_, frame.sequence());
      if (!commits) continue;
      ack.set_committed(read_);
      stream->Write(ack);
    }
    return grpc::Status::OK;
  }

  void Say(const v1::Directive& directive) {
    absl::MutexLock lock(&mutex_);
    ASSERT_NE(stream_, nullptr);
    ASSERT_TRUE(stream_->Write(directive));
  }
  std::optional<v1::PlanPrepared> TakePrepared() {
    absl::MutexLock lock(&mutex_);
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return prepared_.has_value();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&there), kSoon);
    return std::exchange(prepared_, std::nullopt);
  }
  std::optional<v1::PlanApplied> applied() {
    absl::MutexLock lock(&mutex_);
    return applied_;
  }

  // Waits for the frame, and acknowledges it only on the next connection.
  void Take(uint64_t sequence) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return read_ >= sequence;
    };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kSoon));
    held_ = sequence;
  }
  std::vector<v1::Goodbye> goodbyes() {
    absl::MutexLock lock(&mutex_);
    return goodbyes_;
  }

  // Number of connections that have sent a hello.
  size_t connections() {
    absl::MutexLock lock(&mutex_);
    return asked_.size();
  }

  // Set before the first Hello. `refusal` answers the Hellos of the first
  // `refused_hellos` connections, and the first `refused_uploads` uploads.
  grpc::Status refusal;
  size_t refused_hellos = std::numeric_limits<size_t>::max();
  size_t refused_uploads = 0;
  // The first `mute_to` connections get no Welcome.
  size_t mute_to = 0;
  // Whether pings are answered.
  bool answers = true;
  // Acknowledges each frame as committed.
  bool commits = false;
  // Number of farewells to ignore.
  size_t deaf_to = 0;

 private:
  // A damaged connection stays damaged. `known`: connections in order.
  bool IsRefused(grpc::ServerContext* context, std::vector<std::string>* known,
                 size_t refused) {
    absl::MutexLock lock(&mutex_);
    const auto at = std::find(known->begin(), known->end(), context->peer());
    const auto place = static_cast<size_t>(at - known->begin());
    if (at == known->end()) known->push_back(context->peer());
    return !refusal.ok() && place < refused;
  }

  absl::Mutex mutex_;
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> uploaded_ ABSL_GUARDED_BY(mutex_);
  grpc::ServerReaderWriter<v1::Directive, v1::AgentEvent>* stream_
      ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t read_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::Goodbye> goodbyes_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::PlanPrepared> prepared_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::PlanApplied> applied_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<grpc::Server> Serve(FakeCollector* collector,
                                    SessionOptions* options) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(collector);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  options->collector = "127.0.0.1:" + std::to_string(port);
  options->identity.set_run("run");
  options->identity.set_host("host");
  options->identity.set_pid(1);
  options->drain_deadline = absl::Milliseconds(10);
  return server;
}

// A process that listens there may try to write to the terminal of the
// training.
TEST(CollectorLinkTest, ARefusalCannotSteerATerminal) {
  FakeCollector collector;
  collector.refusal =
      grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no\x1b[2J\nOK: yes");
  const SystemClock clock;
  SessionOptions options;
  const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
  options.on_missing = MissingCollector::kFail;
  const absl::Status status =
      Session::Create(std::move(options), &clock).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("no\\x1b[2J\\nOK: yes"));
}

TEST(CollectorLinkTest, ACommitThatCameTooLateIsMadeGoodByTheCollector) {
  FakeCollector collector;
  const SystemClock clock;
  SessionOptions options;
  const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
  auto session = Session::Create(std::move(options), &clock);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->WaitConnected(kSoon).ok());
  (*session)->BeginStep(1);

  v1::PlanSpec plan;
  plan.set_epoch(3);
  plan.set_config_json(R"({"dump_path": "d"})");
  plan.set_enabled(true);
  plan.set_effective_at_step(2);
  v1::Directive prepare, commit, adopt;
  *prepare.mutable_prepare()->mutable_plan() = plan;
  commit.mutable_commit()->set_epoch(3);
  *adopt.mutable_adopt()->mutable_plan() = plan;
  collector.Say(prepare);
  std::optional<v1::PlanPrepared> answer = collector.TakePrepared();
  ASSERT_TRUE(answer.has_value() && answer->accepted());
  EXPECT_FALSE((*session)->BeginStep(2).enabled);
  collector.Say(commit);
  answer = collector.TakePrepared();
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->accepted());
  EXPECT_EQ(answer->epoch(), 3u);

  collector.Say(adopt);
  int64_t step = 2;
  ActivePlan active;
  // Steps continue while the directive is in transit.
  const absl::Time give_up = absl::Now() + kSoon;
  while (active.epoch != 3 && absl::Now() < give_up)
    active = (*session)->BeginStep(++step);
  EXPECT_EQ(active.epoch, 3u);
  EXPECT_TRUE(active.enabled);
  while (!collector.applied().has_value() && absl::Now() < give_up)
    (*session)->BeginStep(++step);
  ASSERT_TRUE(collector.applied().has_value());
  EXPECT_EQ(collector.applied()->epoch(), 3u);
  EXPECT_GT(collector.applied()->step(), 2);
  session->reset();
  server->Shutdown(std::chrono::system_clock::now());
}

std::unique_ptr<RecordBuffer> ThreeRecords(int64_t step) {
  auto records = std::make_unique<RecordBuffer>();
  records->batch()->set_step(step);
  for (uint64_t order = 0; order < 3; ++order) records->Add()->set_order(order);
  return records;
}

constexpr grpc::StatusCode kCodes[] = {
    grpc::StatusCode::ALREADY_EXISTS,
    grpc::StatusCode::INVALID_ARGUMENT,
    grpc::StatusCode::UNAUTHENTICATED,
    grpc::StatusCode::PERMISSION_DENIED,
    grpc::StatusCode::UNIMPLEMENTED,
    grpc::StatusCode::INTERNAL,
    grpc::StatusCode::FAILED_PRECONDITION,
    grpc::StatusCode::NOT_FOUND,
    grpc::StatusCode::UNKNOWN,
};

// A refusal because of a flipped bit in the headers of a call: in its path, its
// token.
TEST(CollectorLinkTest, ARefusalIsAskedForAgainOnAnotherConnection) {
  for (const grpc::StatusCode code : kCodes) {
    FakeCollector collector;
    collector.refusal = grpc::Status(code, "");
    collector.refused_hellos = 1;
    const SystemClock clock;
    SessionOptions options;
    const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
    ::testing::internal::CaptureStderr();
    auto session = Session::Create(std::move(options), &clock);
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_EQ((*session)->WaitConnected(kSoon), absl::OkStatus()) << code;
    EXPECT_EQ(collector.connections(), 2u) << code;
    session->reset();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << code;
    server->Shutdown(std::chrono::system_clock::now());
  }
}

TEST(CollectorLinkTest, AnUploadThatIsRefusedIsMadeOnAnotherConnection) {
  FakeCollector collector;
  collector.refusal = grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  collector.refused_hellos = 0;
  collector.refused_uploads = 1;
  const SystemClock clock;
  SessionOptions options;
  const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
  auto session = Session::Create(std::move(options), &clock);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->SubmitRecords(ThreeRecords(1)));
  collector.Take(1);
  EXPECT_EQ(collector.connections(), 2u);
  session->reset();
  server->Shutdown(std::chrono::system_clock::now());
}

// A flip in the length of the welcome makes the agent wait for bytes that never
// come.
TEST(CollectorLinkTest,
     AWelcomeThatDoesNotComeIsAskedForAgainBeforeAShortJobEnds) {
  FakeCollector collector;
  collector.mute_to = 2;
  const SystemClock clock;
  SessionOptions options;
  const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
  auto session = Session::Create(std::move(options), &clock);
  ASSERT_TRUE(session.ok()) << session.status();
  // 0.5 s, 1 s, and the pauses between; an ack has 2 s, then 4 s.
  EXPECT_EQ((*session)->WaitConnected(absl::Seconds(5)), absl::OkStatus());
  EXPECT_EQ(collector.connections(), 3u);
  session->reset();
  server->Shutdown(std::chrono::system_clock::now());
}

TEST(CollectorLinkTest, ARefusalOnTwoConnectionsIsFinal) {
  FakeCollector collector;
  collector.refusal = grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  const SystemClock clock;
  SessionOptions options;
  const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
  ::testing::internal::CaptureStderr();
  auto session = Session::Create(std::move(options), &clock);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_THAT(std::string((*session)->WaitConnected(kSoon).message()),
              ::testing::HasSubstr("is not a compatible rankprobe collector"));
  EXPECT_EQ(collector.connections(), 2u);
  session->reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::ContainsRegex("^rankprobe: nothing is recorded, "
                                       "training continues: [^\n]*\n$"));
  server->Shutdown(std::chrono::system_clock::now());
}

// Like the two tests above, for frames of a killed process, which have no
// session.
TEST(SpoolDeliveryTest, ARefusalCountsWhenASecondConnectionGetsIt) {
  for (const size_t refused : {1, 2}) {
    const std::string directory = absl::StrCat(
        ::testing::TempDir(), "/left_spool_", ::getpid(), "_", refused);
    const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
    {
      v1::Identity identity;
      identity.set_run("run");
      identity.set_incarnation(7);
      auto spool = Spool::Open({.directory = directory, .secret = "secret"},
                               identity, file_system.get());
      ASSERT_TRUE(spool.ok()) << spool.status();
      v1::UploadFrame frame;
      frame.set_sequence(1);
      const std::string bytes = frame.SerializeAsString();
      ASSERT_TRUE(
          (*spool)->Append(1, bytes, "", ChecksumField(Crc32c(bytes))).ok());
    }
    FakeCollector collector;
    collector.refusal = grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no");
    collector.refused_hellos = refused;
    collector.commits = true;
    SessionOptions options;
    const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
    const absl::StatusOr<SpoolDelivery> done =
        DeliverSpools({.directory = directory, .collector = options.collector});
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->delivered.size(), refused == 1 ? 1u : 0u);
    EXPECT_EQ(done->left.size(), refused == 1 ? 0u : 1u);
    EXPECT_EQ(collector.connections(), 2u);
    server->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(directory);
  }
}

// Under policy `block`, with a collector that acknowledges nothing: its
// connection is given up after 2 s, and it welcomes the rank again.
TEST(CollectorLinkTest, ACollectorThatAnswersIsWaitedForAndNoOtherIs) {
  for (const bool answers : {false, true}) {
    FakeCollector collector;
    collector.answers = answers;
    const SystemClock clock;
    SessionOptions options;
    const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
    options.queue_budget_bytes = 1 << 20;
    options.block_deadline = answers ? absl::Seconds(4) : absl::Hours(1);
    if (answers) options.silence_deadline = absl::Seconds(1);
    auto session = Session::Create(std::move(options), &clock);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE((*session)->WaitConnected(kSoon).ok());
    v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
    std::vector<std::unique_ptr<PayloadBuffer>> payloads;
    while (reason == v1::LOSS_REASON_UNSPECIFIED) {
      ASSERT_TRUE((*session)->SubmitRecords(ThreeRecords(1)));
      payloads.push_back((*session)->ReservePayload(128 << 10, &reason));
    }
    EXPECT_EQ(reason, answers ? v1::LOSS_REASON_AGENT_DEADLINE
                              : v1::LOSS_REASON_COLLECTOR_SILENT);
    payloads.clear();
    session->reset();
    server->Shutdown(std::chrono::system_clock::now());
  }
}

// The acks for frames that the collector has were lost in transit.
TEST(CollectorLinkTest, TheFarewellKnowsWhatTheCollectorHas) {
  for (const uint64_t held : {1, 2}) {
    FakeCollector collector;
    collector.deaf_to = 1;
    const SystemClock clock;
    SessionOptions options;
    const std::unique_ptr<grpc::Server> server = Serve(&collector, &options);
    std::vector<v1::Undelivered> lost;
    options.on_undelivered = [&lost](const v1::Undelivered& left) {
      lost.push_back(left);
    };
    auto session = Session::Create(std::move(options), &clock);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE((*session)->WaitConnected(kSoon).ok());
    ASSERT_TRUE((*session)->SubmitRecords(ThreeRecords(4)));
    collector.Take(1);
    ASSERT_TRUE((*session)->SubmitRecords(ThreeRecords(5)));
    collector.Take(2);
    if (held == 1) collector.Take(1);
    session->reset();
    const std::vector<v1::Goodbye> said = collector.goodbyes();
    ASSERT_EQ(said.size(), 2u);
    EXPECT_EQ(said[0].undelivered().records(), 6u);
    EXPECT_EQ(said[0].undelivered().last_sequence(), 2u);
    ASSERT_TRUE(said[1].has_undelivered());
    EXPECT_EQ(said[1].undelivered().records(), held == 1 ? 3u : 0u);
    EXPECT_EQ(lost.size(), held == 1 ? 1u : 0u);
    if (held == 1) {
      EXPECT_EQ(lost[0].records(), 3u);
      EXPECT_EQ(lost[0].first_step(), 5);
      EXPECT_EQ(said[1].undelivered().after_sequence(), 1u);
      EXPECT_EQ(said[1].undelivered().last_sequence(), 2u);
    }
    server->Shutdown(std::chrono::system_clock::now());
  }
}

}  // namespace
}  // namespace rankprobe
