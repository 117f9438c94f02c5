// SPDX-License-Identifier: Apache-2.0
// Two starts of a program with one name of the run.
#include <optional>
#include <string>

#include "collector/control/control_plane.h"
#include "collector/testing/control_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNoRank = -1;

class OthersTest : public testing::ControlFixture {
 protected:
  absl::StatusOr<AgentSessions::Admission> Admit(int64_t rank,
                                                 uint64_t incarnation,
                                                 const std::string& job = "") {
    v1::Hello hello;
    v1::Identity& identity = *hello.mutable_identity();
    identity = testing::MakeIdentity("run", rank, incarnation);
    identity.set_pid(static_cast<int64_t>(incarnation));
    identity.set_job(job);
    hello.set_protocol(1);
    return control_->agents().Admit(hello, [](const v1::Directive&) {});
  }
  // Returns what a process that starts now is told, and the id of its session.
  std::optional<v1::OtherProcess> Told(int64_t rank, uint64_t incarnation,
                                       const std::string& job = "") {
    const auto admitted = Admit(rank, incarnation, job);
    EXPECT_TRUE(admitted.ok()) << admitted.status();
    if (!admitted.ok()) return std::nullopt;
    session_ = admitted->welcome.session_id();
    identity_ = admitted->identity;
    if (!admitted->welcome.has_other()) return std::nullopt;
    return admitted->welcome.other();
  }
  // The newest process records a step.
  void Record() {
    testing::Frames frames(identity_);
    frames.AddStep(0, "bytes");
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
  }
  void End(bool in_good_order) {
    if (in_good_order) {
      v1::AgentEvent goodbye;
      goodbye.mutable_goodbye();
      control_->agents().OnEvent(session_, goodbye);
    }
    control_->agents().Disconnected(session_, "");
  }

  std::string session_;
  v1::Identity identity_;
};

TEST_F(OthersTest, AProcessWithoutARankIsToldOfOneThatIsConnected) {
  EXPECT_FALSE(Told(kNoRank, 11).has_value());
  const auto other = Told(kNoRank, 12);
  ASSERT_TRUE(other.has_value());
  EXPECT_TRUE(other->connected());
  EXPECT_EQ(other->identity().pid(), 11);
  EXPECT_EQ(other->unix_ns(), absl::ToUnixNanos(clock_.Now()));
}

TEST_F(OthersTest, RankZeroIsToldOfRecordsOfAnEarlierJob) {
  ASSERT_FALSE(Told(0, 11).has_value());
  Record();
  End(/*in_good_order=*/true);
  const auto other = Told(0, 12);
  ASSERT_TRUE(other.has_value());
  EXPECT_FALSE(other->connected());
  EXPECT_EQ(other->identity().pid(), 11);
}

TEST_F(OthersTest, OneThatLeftNothingIsNoMatter) {
  ASSERT_FALSE(Told(0, 11).has_value());
  End(/*in_good_order=*/true);
  EXPECT_FALSE(Told(0, 12).has_value());
}

TEST_F(OthersTest, WhoComesAfterACrashIsToldNothing) {
  ASSERT_FALSE(Told(0, 11).has_value());
  Record();
  End(/*in_good_order=*/false);
  EXPECT_FALSE(Told(0, 12).has_value());
}

TEST_F(OthersTest, ProcessesOfOneStartBelongTogether) {
  ASSERT_FALSE(Told(kNoRank, 11, "job").has_value());
  Record();
  EXPECT_FALSE(Told(kNoRank, 12, "job").has_value());
  End(/*in_good_order=*/true);
  EXPECT_FALSE(Told(kNoRank, 13, "job").has_value());
  EXPECT_TRUE(Told(kNoRank, 14, "another").has_value());
}

TEST_F(OthersTest, OneRankSpeaksForItsJob) {
  ASSERT_FALSE(Told(1, 11).has_value());
  Record();
  End(/*in_good_order=*/true);
  EXPECT_FALSE(Told(1, 12).has_value());
}

TEST_F(OthersTest, ARankThatIsTakenSaysSinceWhenAndWhatHelps) {
  ASSERT_TRUE(Admit(0, 11).ok());
  const absl::Status taken = Admit(0, 12).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(taken.message(),
              HasSubstr("process 11 on host, connected since "));
  EXPECT_THAT(taken.message(), HasSubstr("RANKPROBE_RUN"));
}

}  // namespace
}  // namespace rankprobe
