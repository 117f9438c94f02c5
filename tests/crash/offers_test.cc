// SPDX-License-Identifier: Apache-2.0
// Equal payloads of several ranks at the same time: over real sockets they
// cross the wire once, and nobody is kept from its barrier for long.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collector/ingest/payload_leases.h"
#include "gtest/gtest.h"
#include "tests/crash/raw_agent.h"
#include "tests/crash/server_fixture.h"
#include "tests/crash/workload.h"

namespace rankprobe::crash {
namespace {

constexpr int kPayloads = 64;
constexpr uint64_t kBytes = 256 << 10;
// Each with parameters of its own: there are 256.
constexpr int kRounds = 4;
// Less than a rank waits for another, or for an answer.
constexpr int64_t kWaitsNs = 300'000'000;

// The parameter `i` that data-parallel ranks hold alike.
Payload Parameter(int i) {
  std::string data(kBytes, '\0');
  for (uint64_t b = 0; b < kBytes; ++b)
    data[b] = static_cast<char>(b * 31 + b / 251 + static_cast<uint64_t>(i));
  return MakePayload(std::move(data));
}

class OffersTest : public ServerTest {
 protected:
  static std::vector<Payload> Submit(Session* session, int count = kPayloads,
                                     int first = 0) {
    std::vector<Payload> payloads;
    for (int i = 0; i < count; ++i) {
      const Payload& payload = payloads.emplace_back(Parameter(first + i));
      v1::LossReason reason;
      auto buffer = session->ReservePayload(kBytes, &reason);
      EXPECT_NE(buffer, nullptr);
      std::memcpy(buffer->data(), payload.data.data(), kBytes);
      session->SubmitPayload(payload.digest, std::move(buffer));
    }
    return payloads;
  }
  static std::string Text(const Payload& payload) {
    return std::string(payload.digest.begin(), payload.digest.end());
  }
  void ExpectStored(const std::vector<Payload>& payloads) {
    for (const Payload& payload : payloads)
      EXPECT_TRUE(store_->HasPayload("run", Text(payload), kBytes));
  }
};

// Once, unless a rank has lost patience with a machine that is busy: then they
// do it again, with others.
TEST_F(OffersTest, ReplicasCrossTheWireOnce) {
  constexpr int kRanks = 4;
  bool once = false, never = false;
  for (int turn = 0; turn < kRounds && !once; ++turn) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (int rank = 0; rank < kRanks; ++rank) {
      sessions.push_back(
          Connect(10 * turn + rank, 64 << 20, OverflowPolicy::kBlock));
    }
    std::vector<std::thread> ranks;
    for (auto& session : sessions) {
      ranks.emplace_back([this, turn, session = session.get()] {
        const auto payloads = Submit(session, kPayloads, turn * kPayloads);
        EXPECT_TRUE(
            session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(60)).ok());
        ExpectStored(payloads);  // behind the barrier, whoever sent them
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
    EXPECT_GE(sent, kPayloads * kBytes);
    once = sent <= kPayloads * kBytes * 5 / 4;
  }
  EXPECT_TRUE(once);
  // Later ranks send nothing at all.
  for (int turn = 0; turn < kRounds && !never; ++turn) {
    const auto late = Connect(100 + turn, 64 << 20, OverflowPolicy::kBlock);
    Submit(late.get());
    EXPECT_TRUE(late->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(60)).ok());
    never = late->GetStats().deduplicated_bytes == kPayloads * kBytes;
  }
  EXPECT_TRUE(never);
}

class ClaimerTest : public OffersTest {
 protected:
  // A rank that promises everything, and is heard.
  std::unique_ptr<RawAgent> Claim(int64_t rank = 1, int first = 0) {
    auto agent = std::make_unique<RawAgent>(address(), rank, "run");
    v1::UploadFrame frame;
    for (int i = 0; i < kPayloads; ++i) {
      frame.mutable_offers()->add_digests(Text(Parameter(first + i)));
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
  const int64_t claimed = clock_.MonotonicNanos();
  const auto claimer = Claim();
  const auto session = Connect(0, 64 << 20, OverflowPolicy::kBlock);
  const auto payloads = Submit(session.get());
  EXPECT_TRUE(session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(20)).ok());
  EXPECT_GE(clock_.MonotonicNanos() - claimed, kWaitsNs)
      << "it waits for the other";
  ExpectStored(payloads);
}

// Before patience is over. On a busy machine it may be over first: then it is
// tried again, with others.
TEST_F(ClaimerTest, WhoDiesHandsItsPromisesOn) {
  bool in_time = false;
  for (int turn = 0; turn < kRounds && !in_time; ++turn) {
    const int64_t claimed = clock_.MonotonicNanos();
    auto claimer = Claim(/*rank=*/10 + turn, /*first=*/turn * kPayloads);
    const auto session = Connect(turn, 64 << 20, OverflowPolicy::kBlock);
    const auto payloads = Submit(session.get(), 8, turn * kPayloads);
    const bool waits =
        !session->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(200)).ok();
    EXPECT_TRUE(waits || clock_.MonotonicNanos() - claimed >= kWaitsNs);
    claimer.reset();
    EXPECT_TRUE(
        session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(20)).ok());
    in_time =
        waits && clock_.MonotonicNanos() - claimed < PayloadLeases::kPatienceNs;
    ExpectStored(payloads);
  }
  EXPECT_TRUE(in_time);
}

}  // namespace
}  // namespace rankprobe::crash
