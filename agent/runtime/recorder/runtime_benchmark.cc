// SPDX-License-Identifier: Apache-2.0
// The agent's own cost, without a network: recording a call, and converting
// records and payloads to frames.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/testing/fake_session.h"
#include "tests/bench/load.h"
#include "tests/bench/paired.h"

namespace rankprobe {
namespace {

constexpr size_t kPayloadBytes = 64 << 20;

// Accepts everything and stores nothing.
class NullSession : public testing::FakeSession {
 public:
  using FakeSession::FakeSession;
  bool SubmitRecords(std::unique_ptr<RecordBuffer>) override { return true; }
};

// One call with two inputs and an output that were not seen before; the tensors
// have the given number of bytes. Time for each tensor, with statistics.
void RecordCall(benchmark::State& state) {
  const SystemClock clock;
  RecorderOptions options;
  options.config_json = R"({"task": "statistics", "dump_path": "./dump",
    "rank": [], "step": [], "level": "mix", "statistics": {}})";
  testing::Received received;
  auto recorder = Recorder::Create(
      options, std::make_unique<NullSession>(&received), &clock);
  if (!recorder.ok()) {
    state.SkipWithError(std::string(recorder.status().message()).c_str());
    return;
  }
  const int64_t elements = state.range(0) / 4;
  std::vector<float> data(static_cast<size_t>(elements), 1.5f);
  const int64_t sizes[] = {elements / 64, 64}, strides[] = {64, 1};
  TensorInfo tensor;
  tensor.view.data = data.data();
  tensor.view.dtype = v1::DTYPE_FLOAT32;
  tensor.view.sizes = sizes;
  tensor.view.strides = strides;
  tensor.identity.storage = data.data();
  constexpr int kCallsPerStep = 500;
  for (auto _ : state) {
    (*recorder)->Start();
    for (int i = 0; i < kCallsPerStep; ++i) {
      const RecordedCall call = (*recorder)->calls().BeginApi("Aten", "linear");
      (*recorder)->calls().Inputs(
          call, [&](CallBuilder& b, v1::CallPhase* phase) {
            for (int k = 0; k < 2; ++k) {
              ++tensor.identity.version;
              b.Tensor(tensor, phase->mutable_input_args()->add_items());
            }
          });
      (*recorder)->calls().Outputs(
          call, [&](CallBuilder& b, v1::CallPhase* phase) {
            ++tensor.identity.version;
            b.Tensor(tensor, phase->mutable_output()->add_items());
          });
    }
    (*recorder)->Stop();
    (*recorder)->Step();
  }
  state.SetItemsProcessed(state.iterations() * kCallsPerStep * 3);
}
BENCHMARK(RecordCall)->ArgName("bytes")->Arg(256)->Arg(64 << 10);

FrameQueue::Options QueueOptions() {
  FrameQueue::Options options;
  options.budget_bytes = uint64_t{256} << 20;
  options.max_payload_bytes = uint64_t{1} << 30;
  options.block_deadline = absl::Seconds(1);
  return options;
}

// Takes and acknowledges all available frames.
void Drain(FrameQueue* queue, uint64_t* committed) {
  EncodedFrame frame;
  v1::UploadAck ack;
  while (queue->NextFrame(uint64_t{1} << 40, &frame)) {
    benchmark::DoNotOptimize(frame.tail.data());
    *committed = frame.sequence;
    ack.set_committed(*committed);
    queue->Ack(ack);
  }
}

void RecordFrames(benchmark::State& state) {
  constexpr int kRecords = 2000;
  const SystemClock clock;
  FrameQueue queue(QueueOptions(), &clock, [] {});
  uint64_t committed = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto records = std::make_unique<RecordBuffer>();
    for (int i = 0; i < kRecords; ++i)
      bench::FillRecord(static_cast<uint64_t>(i), records->Add());
    state.ResumeTiming();
    queue.SubmitRecords(std::move(records));
    Drain(&queue, &committed);
  }
  state.SetItemsProcessed(state.iterations() * kRecords);
}
BENCHMARK(RecordFrames);

// Payload bytes from the training tensor to frames, compared with one memcpy.
void PayloadFrames(benchmark::State& state) {
  const SystemClock clock;
  FrameQueue queue(QueueOptions(), &clock, [] {});
  std::vector<char> source(kPayloadBytes), target(kPayloadBytes);
  bench::FillPayload(1, source.data(), source.size());
  uint64_t committed = 0, number = 0;
  bench::RunPaired(
      state, kPayloadBytes,
      [&] {
        std::memcpy(target.data(), source.data(), source.size());
        benchmark::DoNotOptimize(target.data());
        benchmark::ClobberMemory();
      },
      [&] {
        v1::LossReason reason;
        auto buffer = queue.Reserve(kPayloadBytes, &reason);
        std::memcpy(buffer->data(), source.data(), source.size());
        FrameQueue::Digest digest{};
        ++number;
        std::memcpy(digest.data(), &number, sizeof(number));
        queue.SubmitPayload(digest, std::move(buffer));
        Drain(&queue, &committed);
      });
}
BENCHMARK(PayloadFrames)->UseManualTime();

}  // namespace
}  // namespace rankprobe

BENCHMARK_MAIN();
