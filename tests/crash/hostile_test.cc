// SPDX-License-Identifier: Apache-2.0
// Agents that mean no good: each costs one closed stream, an honest rank beside
// it notices nothing, and the collector's memory stays bounded.
#include <fstream>
#include <thread>

#include "absl/time/clock.h"
#include "common/io/crc32c.h"
#include "gtest/gtest.h"
#include "tests/crash/raw_agent.h"
#include "tests/crash/server_fixture.h"

namespace rankprobe::crash {
namespace {

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

v1::UploadFrame Chunk(uint64_t sequence, uint64_t length, uint64_t offset,
                      const std::string& data) {
  v1::UploadFrame frame;
  frame.set_sequence(sequence);
  v1::PayloadChunk* const chunk = frame.mutable_chunk();
  chunk->set_digest(std::string(16, 'd'));
  chunk->set_length_bytes(length);
  chunk->set_offset_bytes(offset);
  chunk->set_data(data);
  chunk->set_crc32c(Crc32c(data));
  return frame;
}

struct Case {
  const char* name;
  std::vector<v1::UploadFrame> frames;
  // A fault of the protocol ends the stream; what a numbered frame holds costs
  // that frame.
  bool ends_stream = false;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({"zero chunk", {Chunk(1, 8, 0, "")}});
  cases.push_back({"beyond its payload", {Chunk(1, 8, 4, "12345678")}});
  cases.push_back({"offset overflow", {Chunk(1, 8, UINT64_MAX, "1")}});
  cases.push_back({"a payload of 2^60 bytes", {Chunk(1, 1ull << 60, 0, "1")}});
  cases.push_back({"sequence gap", {Chunk(7, 8, 0, "1234")}, true});
  cases.push_back({"sequence zero", {Chunk(0, 8, 0, "1234")}, true});
  Case bad_crc{"wrong checksum", {Chunk(1, 8, 0, "1234")}};
  bad_crc.frames[0].mutable_chunk()->set_crc32c(1);
  cases.push_back(bad_crc);
  Case digest{"short digest", {Chunk(1, 8, 0, "1234")}};
  digest.frames[0].mutable_chunk()->set_digest("d");
  cases.push_back(digest);
  const auto offers = [&](const char* name, int digests, int lengths,
                          size_t bytes, uint64_t sequence) {
    Case c{name, {v1::UploadFrame()}, true};
    c.frames[0].set_sequence(sequence);
    v1::PayloadOffers* const out = c.frames[0].mutable_offers();
    for (int i = 0; i < digests; ++i) out->add_digests(std::string(bytes, 'd'));
    for (int i = 0; i < lengths; ++i) out->add_length_bytes(1);
    cases.push_back(c);
  };
  offers("no offers", 0, 0, 16, 0);
  offers("offers without lengths", 2, 1, 16, 0);
  offers("offers of short digests", 1, 1, 15, 0);
  offers("too many offers", 257, 257, 16, 0);
  offers("offers with a number", 1, 1, 16, 1);
  Case step{"negative step", {v1::UploadFrame()}};
  step.frames[0].set_sequence(1);
  step.frames[0].mutable_batch()->set_step(-1);
  step.frames[0].mutable_batch()->add_records()->mutable_step_begin();
  cases.push_back(step);
  Case empty{"empty record", {v1::UploadFrame()}};
  empty.frames[0].set_sequence(1);
  empty.frames[0].mutable_batch()->add_records();
  cases.push_back(empty);
  Case dims{"huge dimensions", {v1::UploadFrame()}};
  dims.frames[0].set_sequence(1);
  v1::CallPhase* const call =
      dims.frames[0].mutable_batch()->add_records()->mutable_call();
  call->set_entry("e");
  v1::TensorSummary* const tensor =
      call->mutable_output()->add_items()->mutable_tensor();
  tensor->mutable_payload()->set_digest(std::string(16, 'd'));
  tensor->mutable_payload()->set_length_bytes(UINT64_MAX);
  for (int i = 0; i < 8; ++i) tensor->add_shape(INT64_MAX);
  cases.push_back(dims);
  Case deep{"deep nesting", {v1::UploadFrame()}};
  deep.frames[0].set_sequence(1);
  v1::CallPhase* const nested =
      deep.frames[0].mutable_batch()->add_records()->mutable_call();
  nested->set_entry("e");
  v1::Value* value = nested->mutable_output()->add_items();
  for (int i = 0; i < 45; ++i) value = value->mutable_list()->add_items();
  // Beyond protobuf's own limit for parsing.
  for (int i = 0; i < 400; ++i) value = value->mutable_list()->add_items();
  cases.push_back(deep);
  return cases;
}

class HostileTest : public ServerTest {
 protected:
  // The honest rank beside them.
  void Beat(Session* session) {
    auto records = std::make_unique<RecordBuffer>();
    records->batch()->set_step(step_++);
    records->Add()->mutable_step_begin();
    EXPECT_TRUE(session->SubmitRecords(std::move(records)));
    const absl::Status status =
        session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(20));
    EXPECT_TRUE(status.ok()) << status;
  }
  int64_t step_ = 0;
};

TEST_F(HostileTest, EachCaseCostsOneFrameOrOneStream) {
  std::unique_ptr<Session> honest = Connect(0, 8 << 20, OverflowPolicy::kBlock);
  int64_t rank = 1;
  for (const Case& hostile : Cases()) {
    SCOPED_TRACE(hostile.name);
    RawAgent agent(address(), rank++);
    for (const v1::UploadFrame& frame : hostile.frames) agent.Send(frame);
    if (hostile.ends_stream) {
      EXPECT_FALSE(agent.End().ok());
    } else {
      v1::UploadAck ack;
      while (agent.Read(&ack) && ack.refused_frames().empty()) {
      }
      ASSERT_EQ(ack.refused_frames_size(), 1);
      EXPECT_EQ(ack.refused_frames(0).sequence(), 1u);
      EXPECT_NE(ack.refused_frames(0).reason(), "");
      // The next frame, a part of a payload, is taken.
      EXPECT_TRUE(agent.Send(Chunk(2, 16, 0, "12345678")));
      bool committed = ack.committed() >= 2;
      while (!committed && agent.Read(&ack)) committed = ack.committed() >= 2;
      EXPECT_TRUE(committed);
      agent.HalfClose();
      EXPECT_TRUE(agent.End().ok());
    }
    Beat(honest.get());
  }
  EXPECT_EQ(honest->GetStats().reconnects, 0u);
  v1::VerifyRequest request;
  request.set_read_data(true);
  EXPECT_EQ(store_->Verify(request, {})->fault_count(), 0u);
}

// Overlaps, gaps between chunks and a wrong total are no lies about lengths:
// they are taken, and the payload is never shown.
TEST_F(HostileTest, PayloadsThatDoNotAddUpAreNeverWhole) {
  RawAgent agent(address(), 1);
  EXPECT_TRUE(agent.Send(Chunk(1, 12, 0, "1234")));
  EXPECT_TRUE(agent.Send(Chunk(2, 12, 2, "3456")));
  EXPECT_TRUE(agent.Send(Chunk(3, 12, 10, "xx")));
  EXPECT_TRUE(agent.Send(Chunk(4, 12, 6, "789012")));
  agent.HalfClose();
  agent.End();
  EXPECT_FALSE(store_->HasPayload("hostile", std::string(16, 'd'), 12));
}

// A stream without end, against a disk that does not keep up, ends or waits;
// what is held for it is bounded by the flags.
TEST_F(HostileTest, AnEndlessStreamIsHeldToTheFlags) {
  std::unique_ptr<Session> honest = Connect(0, 8 << 20, OverflowPolicy::kBlock);
  Beat(honest.get());
  const uint64_t before = ResidentBytes();
  uint64_t peak = before;
  {
    RawAgent agent(address(), 1);
    fs_.SetCapacity(fs_.used_bytes());
    const std::string data(1000000, 'x');
    // Ten times what may be pending, without regard for credit.
    std::thread sender([&] {
      for (uint64_t i = 0; i < 160; ++i) {
        if (!agent.Send(Chunk(i + 1, 1ull << 33, i * data.size(), data))) break;
      }
    });
    for (int i = 0; i < 40; ++i) {
      absl::SleepFor(absl::Milliseconds(50));
      peak = std::max(peak, ResidentBytes());
    }
    fs_.SetCapacity(UINT64_MAX);
    sender.join();
    agent.HalfClose();
    agent.End();
  }
  std::printf("peak: %d MiB above the start\n",
              static_cast<int>((peak - before) >> 20));
  // Pending bytes, what gRPC holds on both sides of this process, and slack.
  EXPECT_LT(peak - before, uint64_t{96} << 20);
  Beat(honest.get());
}

}  // namespace
}  // namespace rankprobe::crash
