// Equal payloads of several ranks at the same time: over real sockets they
// cross the wire once, and nobody is kept from its barrier for long.
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/summary.h"
#include "gtest/gtest.h"
#include "tests/crash/raw_agent.h"
#include "tests/crash/server_fixture.h"

namespace rankprobe::crash {
namespace {

constexpr int kPayloads = 64;
constexpr uint64_t kBytes = 256 << 10;

std::array<uint8_t, 16> DigestOf(const char* data) {
  SummaryRequest request;
  request.statistics = false;
  request.digest = true;
  const int64_t size = kBytes, stride = 1;
  return Summarize({data, v1::DTYPE_UINT8, {&size, 1}, {&stride, 1}}, request)
      .digest;
}

class OffersTest : public ServerTest {
 protected:
  // The parameters that data-parallel ranks hold alike; their digests.
  static std::vector<std::array<uint8_t, 16>> Submit(Session* session,
                                                     int count = kPayloads) {
    std::vector<std::array<uint8_t, 16>> digests;
    for (int i = 0; i < count; ++i) {
      v1::LossReason reason;
      auto buffer = session->ReservePayload(kBytes, &reason);
      EXPECT_NE(buffer, nullptr);
      for (uint64_t b = 0; b < kBytes; ++b)
        buffer->data()[b] = static_cast<char>(b * 31 + b / 251 + i);
      digests.push_back(DigestOf(buffer->data()));
      session->SubmitPayload(digests.back(), std::move(buffer));
    }
    return digests;
  }
  static absl::string_view Text(const std::array<uint8_t, 16>& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
  }
  void ExpectStored(const std::vector<std::array<uint8_t, 16>>& digests) {
    for (const auto& digest : digests)
      EXPECT_TRUE(store_->HasPayload("run", Text(digest), kBytes));
  }
};

TEST_F(OffersTest, ReplicasCrossTheWireOnce) {
  constexpr int kRanks = 4;
  std::vector<std::unique_ptr<Session>> sessions;
  for (int rank = 0; rank < kRanks; ++rank)
    sessions.push_back(Connect(rank, 64 << 20, OverflowPolicy::kBlock));
  std::vector<std::thread> ranks;
  for (auto& session : sessions) {
    ranks.emplace_back([this, session = session.get()] {
      const auto digests = Submit(session);
      EXPECT_TRUE(
          session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(60)).ok());
      ExpectStored(digests);  // behind the barrier, whoever sent them
    });
  }
  for (std::thread& rank : ranks) rank.join();
  uint64_t sent = 0, submitted = 0;
  for (const auto& session : sessions) {
    const SessionStats stats = session->GetStats();
    submitted += stats.payload_bytes;
    sent += stats.payload_bytes - stats.deduplicated_bytes;
    EXPECT_EQ(stats.lost_payloads, 0u);
  }
  EXPECT_EQ(submitted, kRanks * kPayloads * kBytes);
  // Once, unless a loaded machine makes a rank lose patience.
  EXPECT_GE(sent, kPayloads * kBytes);
  EXPECT_LE(sent, kPayloads * kBytes * 5 / 4);
  // Later ranks send nothing at all.
  const auto late = Connect(9, 64 << 20, OverflowPolicy::kBlock);
  Submit(late.get());
  EXPECT_TRUE(late->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(60)).ok());
  EXPECT_EQ(late->GetStats().deduplicated_bytes, kPayloads * kBytes);
}

class ClaimerTest : public OffersTest {
 protected:
  // A rank that promises everything, and is heard.
  std::unique_ptr<RawAgent> Claim() {
    auto agent = std::make_unique<RawAgent>(address(), 1, "run");
    v1::UploadFrame frame;
    for (int i = 0; i < kPayloads; ++i) {
      std::string data(kBytes, 0);
      for (uint64_t b = 0; b < kBytes; ++b)
        data[b] = static_cast<char>(b * 31 + b / 251 + i);
      frame.mutable_offers()->add_digests(
          std::string(Text(DigestOf(data.data()))));
      frame.mutable_offers()->add_length_bytes(kBytes);
    }
    EXPECT_TRUE(agent->Send(frame));
    for (int wanted = 0; wanted < kPayloads;) {
      v1::UploadAck ack;
      if (!agent->Read(&ack)) break;
      wanted += ack.wanted_digests_size();
      EXPECT_EQ(ack.have_digests_size() + ack.coming_digests_size(), 0);
    }
    return agent;
  }
};

TEST_F(ClaimerTest, APromiseThatIsNotKeptCostsPatienceOnly) {
  const auto claimer = Claim();
  const auto session = Connect(0, 64 << 20, OverflowPolicy::kBlock);
  const auto digests = Submit(session.get());
  EXPECT_EQ(
      session->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(300)).code(),
      absl::StatusCode::kDeadlineExceeded)
      << "it waits for the other";
  EXPECT_TRUE(session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(20)).ok());
  ExpectStored(digests);
}

TEST_F(ClaimerTest, WhoDiesHandsItsPromisesOn) {
  auto claimer = Claim();
  const auto session = Connect(0, 64 << 20, OverflowPolicy::kBlock);
  const auto digests = Submit(session.get(), 8);
  EXPECT_FALSE(
      session->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(200)).ok());
  const absl::Time died = absl::Now();
  claimer.reset();
  EXPECT_TRUE(session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(20)).ok());
  EXPECT_LT(absl::Now() - died, absl::Milliseconds(1500)) << "before patience";
  ExpectStored(digests);
}

}  // namespace
}  // namespace rankprobe::crash
