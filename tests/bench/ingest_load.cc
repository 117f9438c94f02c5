// SPDX-License-Identifier: Apache-2.0
// One measurement of moving bytes or records; prints one JSON object.
//   bench_ingest payload HOST:PORT RUN MIB       through a real session, until
//                                                SYNCED, by shared memory where
//                                                the collector offers it
//   bench_ingest wire    HOST:PORT RUN MIB       the same over the connection
//   bench_ingest records HOST:PORT RUN THOUSANDS [STEP_MS RANK]
//                                                the same with records; a step
//                                                of 10,000 in STEP_MS, or as
//                                                fast as they go (0)
//   bench_ingest steps   HOST:PORT RUN MIB       finished steps of four tensors
//                                                of 16 MiB
//   bench_ingest tensors HOST:PORT RUN THOUSANDS one step with tensors of 1 KiB
//   bench_ingest null    HOST:PORT -   MIB       frames into bench_null_sink
//   bench_ingest write   DIRECTORY FILE MIB      sequential write + fdatasync of
//                                                a new file, which stays: what
//                                                another took and gave back is
//                                                cheaper memory to the kernel
// Payload bytes are read from memory and copied once, as from a tensor.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/runtime/session/session.h"
#include "common/tensor/summary.h"
#include "rankprobe/v1/agent.grpc.pb.h"
#include "tests/bench/load.h"
#include "tests/bench/small_tensors.h"

namespace rankprobe {
namespace {

constexpr size_t kTensorBytes = 16 << 20;
constexpr size_t kFrameBytes = (1 << 20) - 256;
constexpr uint64_t kRecordsPerBuffer = 500;
// Calls, and a record before and behind them.
constexpr uint64_t kRecordsPerStep = 10000;
constexpr size_t kTensorsPerStep = 4;

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int Fail(const std::string& what) {
  std::fprintf(stderr, "bench_ingest: %s\n", what.c_str());
  return 1;
}

void Print(double seconds, uint64_t bytes, uint64_t records) {
  std::printf("{\"seconds\": %.6f, \"bytes\": %llu, \"records\": %llu}\n",
              seconds, static_cast<unsigned long long>(bytes),
              static_cast<unsigned long long>(records));
}

absl::StatusOr<std::unique_ptr<Session>> Connect(const std::string& collector,
                                                 const std::string& run,
                                                 uint32_t rank, bool lane,
                                                 const Clock* clock) {
  SessionOptions options;
  options.lane = lane;
  options.collector = collector;
  options.identity.set_run(run);
  options.identity.set_rank(rank);
  options.block_deadline = options.silence_deadline = absl::Minutes(5);
  absl::StatusOr<std::unique_ptr<Session>> session =
      Session::Create(options, clock);
  if (!session.ok()) return session.status();
  const absl::Status connected = (*session)->WaitConnected(absl::Seconds(20));
  if (!connected.ok()) return connected;
  return session;
}

void AddStepBegin(bool payloads, v1::RecordBatch* batch) {
  v1::StepBegin* const begin = batch->add_records()->mutable_step_begin();
  begin->set_task(payloads ? "tensor" : "statistics");
  begin->set_level("L1");
  begin->set_framework("pytorch");
  begin->set_has_payloads(payloads);
}

// `in_steps`: of finished steps; else of none.
int Payloads(Session* session, std::vector<char>* tensor, size_t count,
             bool in_steps) {
  std::unique_ptr<RecordBuffer> records;
  const int64_t size = static_cast<int64_t>(kTensorBytes), stride = 1;
  TensorView view;
  view.data = tensor->data();
  view.dtype = v1::DTYPE_UINT8;
  view.sizes = absl::MakeConstSpan(&size, 1);
  view.strides = absl::MakeConstSpan(&stride, 1);
  const double began = Seconds();
  for (size_t i = 0; i < count; ++i) {
    // Other content each time; the run stores equal bytes once.
    std::memcpy(tensor->data(), &i, sizeof(i));
    v1::LossReason reason;
    std::unique_ptr<PayloadBuffer> buffer =
        session->ReservePayload(kTensorBytes, &reason);
    if (buffer == nullptr) return Fail("a payload was shed");
    SummaryRequest request;
    request.statistics = false;
    request.digest = true;
    request.copy_to = buffer->data();
    const Summary summary = Summarize(view, request);
    session->SubmitPayload(summary.digest, std::move(buffer));
    if (!in_steps) continue;
    if (records == nullptr) {
      records = std::make_unique<RecordBuffer>();
      records->batch()->set_step(static_cast<int64_t>(i / kTensorsPerStep));
      AddStepBegin(true, records->batch());
    }
    const uint64_t order = i % kTensorsPerStep + 1;
    v1::Record* record = records->Add();
    bench::FillRecord(order, record);
    v1::TensorSummary* const saved = record->mutable_call()
                                         ->mutable_input_args()
                                         ->mutable_items(0)
                                         ->mutable_tensor();
    saved->set_dtype(v1::DTYPE_UINT8);
    saved->clear_shape();
    saved->add_shape(size);
    saved->mutable_payload()->set_digest(summary.digest.data(),
                                         summary.digest.size());
    saved->mutable_payload()->set_length_bytes(kTensorBytes);
    if (order < kTensorsPerStep && i + 1 < count) continue;
    record = records->Add();
    record->set_order(order + 1);
    record->mutable_step_end()->set_call_phases(order);
    record->mutable_step_end()->set_payloads(order);
    if (!session->SubmitRecords(std::move(records)))
      return Fail("records were shed");
  }
  const absl::Status status =
      session->Flush(v1::DURABILITY_SYNCED, absl::Minutes(2));
  if (!status.ok()) return Fail(status.ToString());
  Print(Seconds() - began, count * kTensorBytes, 0);
  return 0;
}

// `step_ms`: how long a step takes; its records come evenly. 0: no time.
int Records(Session* session, uint64_t count, uint64_t step_ms) {
  const double began = Seconds();
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t done = 0; done < count; done += kRecordsPerBuffer) {
    std::this_thread::sleep_until(
        start +
        std::chrono::microseconds(step_ms * 1000 * done / kRecordsPerStep));
    auto records = std::make_unique<RecordBuffer>();
    records->batch()->set_step(static_cast<int64_t>(done / kRecordsPerStep));
    const uint64_t first = done % kRecordsPerStep;
    if (first == 0) AddStepBegin(false, records->batch());
    for (uint64_t i = 0; i < kRecordsPerBuffer; ++i)
      bench::FillRecord(first + i + 1, records->Add());
    if (first + kRecordsPerBuffer == kRecordsPerStep) {
      // A step that ends is rolled up.
      v1::Record* const end = records->Add();
      end->set_order(kRecordsPerStep + 1);
      end->mutable_step_end()->set_call_phases(kRecordsPerStep);
    }
    if (!session->SubmitRecords(std::move(records)))
      return Fail("records were shed");
  }
  const absl::Status status =
      session->Flush(v1::DURABILITY_SYNCED, absl::Minutes(2));
  if (!status.ok()) return Fail(status.ToString());
  Print(Seconds() - began, 0, count);
  return 0;
}

int SmallTensors(Session* session, uint64_t count) {
  const double began = Seconds();
  const absl::Status status = bench::SendSmallTensors(count, session);
  if (!status.ok()) return Fail(status.ToString());
  Print(Seconds() - began, 0, count);
  return 0;
}

int NullSink(const std::string& address, const std::vector<char>& tensor,
             size_t count) {
  const auto stub = v1::AgentService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto stream = stub->Upload(&context);
  v1::UploadFrame frame;
  uint64_t sequence = 0;
  const double began = Seconds();
  for (size_t i = 0; i < count; ++i) {
    for (size_t at = 0; at < kTensorBytes; at += kFrameBytes) {
      const size_t n = std::min(kFrameBytes, kTensorBytes - at);
      frame.set_sequence(++sequence);
      frame.mutable_chunk()->set_data(tensor.data() + at, n);
      if (!stream->Write(frame)) return Fail("the stream broke");
    }
  }
  stream->WritesDone();
  v1::UploadAck ack;
  if (!stream->Read(&ack) || ack.committed() != sequence)
    return Fail("frames were lost");
  const double seconds = Seconds() - began;
  if (const grpc::Status status = stream->Finish(); !status.ok())
    return Fail(status.error_message());
  Print(seconds, count * kTensorBytes, 0);
  return 0;
}

int Write(const std::string& path, const std::vector<char>& tensor,
          size_t count) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return Fail(absl::StrCat("cannot create ", path));
  const double began = Seconds();
  bool ok = true;
  for (size_t i = 0; i < count && ok; ++i) {
    for (size_t at = 0; at < kTensorBytes && ok; at += 1 << 20)
      ok = ::write(fd, tensor.data() + at, 1 << 20) == 1 << 20;
  }
  ok = ok && ::fdatasync(fd) == 0;
  const double seconds = Seconds() - began;
  ::close(fd);
  if (!ok) return Fail(absl::StrCat("cannot write ", path));
  Print(seconds, count * kTensorBytes, 0);
  return 0;
}

int Main(int argc, char** argv) {
  uint64_t amount = 0, step_ms = 0;
  uint32_t rank = 0;
  if ((argc != 5 && argc != 7) || !absl::SimpleAtoi(argv[4], &amount) ||
      (argc == 7 && (!absl::SimpleAtoi(argv[5], &step_ms) ||
                     !absl::SimpleAtoi(argv[6], &rank))))
    return Fail("see the head of ingest_load.cc");
  const std::string mode = argv[1], target = argv[2], run = argv[3];
  std::vector<char> tensor(kTensorBytes);
  bench::FillPayload(static_cast<uint64_t>(::getpid()), tensor.data(),
                     tensor.size());
  const size_t tensors = amount * (1 << 20) / kTensorBytes;
  if (mode == "null") return NullSink(target, tensor, tensors);
  if (mode == "write")
    return Write(absl::StrCat(target, "/", run), tensor, tensors);
  const SystemClock clock;
  absl::StatusOr<std::unique_ptr<Session>> session =
      Connect(target, run, rank, mode != "wire", &clock);
  if (!session.ok()) return Fail(session.status().ToString());
  if (mode == "payload" || mode == "wire" || mode == "steps")
    return Payloads(session->get(), &tensor, tensors, mode == "steps");
  if (mode == "records") return Records(session->get(), amount * 1000, step_ms);
  if (mode == "tensors") return SmallTensors(session->get(), amount * 1000);
  return Fail("unknown mode");
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Main(argc, argv); }
