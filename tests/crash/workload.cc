// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/workload.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/runtime/session/session.h"
#include "common/base/clock.h"

namespace rankprobe::crash {
namespace {

Payload Make(uint64_t seed, size_t size) {
  std::string data(size, '\0');
  std::mt19937_64 random(seed);
  for (size_t at = 0; at + 8 <= size; at += 8) {
    const uint64_t word = random();
    std::memcpy(data.data() + at, &word, 8);
  }
  return MakePayload(std::move(data));
}

volatile std::sig_atomic_t stop_requested = 0;

class StateFile {
 public:
  explicit StateFile(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                   0640)) {}
  ~StateFile() { ::close(fd_); }
  // One write: a line is there whole or not at all when the process dies.
  bool Line(char mark, int64_t step) {
    const std::string line =
        absl::StrCat(std::string(1, mark), " ", step, "\n");
    return ::write(fd_, line.data(), line.size()) ==
           static_cast<ssize_t>(line.size());
  }

 private:
  const int fd_;
};

// False when something was shed, which the generous budget rules out.
bool SubmitStep(Session* session, uint64_t seed, int64_t rank, int64_t step,
                const std::vector<Payload>& payloads) {
  bool all = true;
  for (const Payload& payload : payloads) {
    v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
    std::unique_ptr<PayloadBuffer> buffer =
        session->ReservePayload(payload.data.size(), &reason);
    if (buffer == nullptr) {
      all = false;
      continue;
    }
    std::memcpy(buffer->data(), payload.data.data(), payload.data.size());
    session->SubmitPayload(payload.digest, std::move(buffer));
  }
  auto records = std::make_unique<RecordBuffer>();
  records->batch()->set_step(step);
  uint64_t order = 0;
  const auto add = [&] {
    v1::Record* const record = records->Add();
    record->set_order(order++);
    return record;
  };
  v1::StepBegin* const begin = add()->mutable_step_begin();
  begin->set_has_payloads(true);
  begin->set_task("tensor");
  begin->set_level("L1");
  for (int call = 0; call < kCallsPerStep; ++call) {
    v1::CallPhase* const phase = add()->mutable_call();
    phase->set_entry(absl::StrCat("Torch.op.", call, ".forward"));
    phase->set_kind(v1::CALL_KIND_API_FORWARD);
    const Payload& payload =
        payloads[static_cast<size_t>(call) % payloads.size()];
    v1::TensorSummary* const tensor =
        phase->mutable_output()->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_INT8);
    tensor->add_shape(static_cast<int64_t>(payload.data.size()));
    tensor->mutable_payload()->set_digest(payload.digest.data(), 16);
    tensor->mutable_payload()->set_length_bytes(payload.data.size());
    tensor->mutable_stats()->set_norm_f(NormOf(seed, rank, step, call));
  }
  v1::StepEnd* const end = add()->mutable_step_end();
  end->set_call_phases(kCallsPerStep);
  end->set_payloads(kCallsPerStep);
  return session->SubmitRecords(std::move(records)) && all;
}

}  // namespace

Payload MakePayload(std::string data) {
  Payload payload;
  payload.data = std::move(data);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(
      &canonical, XXH3_128bits(payload.data.data(), payload.data.size()));
  std::memcpy(payload.digest.data(), canonical.digest, 16);
  return payload;
}

double NormOf(uint64_t seed, int64_t rank, int64_t step, int call) {
  return static_cast<double>(seed % 1000003) + static_cast<double>(rank) / 8 +
         static_cast<double>(step) * 64 + static_cast<double>(call) / 1024;
}

std::vector<Payload> PayloadsOf(uint64_t seed, int64_t rank, int64_t step,
                                bool kept, bool small) {
  const auto r = static_cast<uint64_t>(rank), s = static_cast<uint64_t>(step);
  std::vector<Payload> payloads;
  if (small) {
    for (uint64_t i = 0; i < 3; ++i)
      payloads.push_back(Make(seed ^ (r * 7919 + s * 104729 + i), 8000 + i));
    return payloads;
  }
  payloads.push_back(Make(seed ^ (s / 7 * 1000003), 300000));
  if (kept && step % 4 != 0) return payloads;
  const uint64_t own = seed ^ (r * 7919 + s * 104729 + 1);
  // One in eight takes several chunks.
  const uint64_t size = own % 8 == 0 ? (1 << 20) + own % (1 << 20) * 2
                                     : (40 << 10) + own % (1 << 18);
  payloads.push_back(Make(own, size));
  payloads.push_back(Make(own + 1, 64 + own % 512 * 8));
  return payloads;
}

int RunAgent(const std::string& collector, uint64_t seed, int64_t rank,
             int64_t life, const std::string& state_path,
             const std::string& spool_directory, bool kept,
             absl::Duration pause, bool small) {
  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGTERM);
  ::sigprocmask(SIG_UNBLOCK, &held, nullptr);
  const SystemClock clock;
  SessionOptions options;
  options.collector = collector;
  options.identity.set_run(kRun);
  options.identity.set_rank(rank);
  options.identity.set_host("localhost");
  options.queue_budget_bytes = uint64_t{64} << 20;
  options.block_deadline = options.silence_deadline = absl::Minutes(5);
  options.reconnect_min = absl::Milliseconds(20);
  options.reconnect_max = absl::Milliseconds(300);
  options.drain_deadline = absl::Seconds(60);
  options.spool_directory = spool_directory;
  if (kept) options.stop_barrier = StopBarrier::kKept;
  const auto session = Session::Create(options, &clock);
  if (!session.ok()) {
    std::fprintf(stderr, "agent %lld: %s\n", static_cast<long long>(rank),
                 session.status().ToString().c_str());
    return 1;
  }
  StateFile state(state_path);
  bool told_lane = false;
  int64_t longest_ns = 0;
  for (int64_t step = life * kStepsPerLife; stop_requested == 0; ++step) {
    if (!told_lane && (*session)->GetStats().lane_bytes > 0) {
      told_lane = true;
      const StateFile lane(state_path + kOnLane);
    }
    (*session)->BeginStep(step);
    if (!state.Line('P', step)) return 1;
    if (!SubmitStep(session->get(), seed, rank, step,
                    PayloadsOf(seed, rank, step, kept, small)))
      return 2;
    // Safe at once, and all before it.
    if (kept && (*session)->Keep()) {
      if (!state.Line('A', step)) return 1;
      absl::SleepFor(absl::Milliseconds(5));
      continue;
    }
    // Every other step waits for its ack; the one before it is covered too.
    if (step % 2 == 0) {
      // A step takes its time: hours of this must fit on a disk.
      absl::SleepFor(pause);
      continue;
    }
    absl::Status flushed;
    const int64_t began = clock.MonotonicNanos();
    do {
      flushed =
          (*session)->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(200));
    } while (!flushed.ok() && stop_requested == 0);
    longest_ns = std::max(longest_ns, clock.MonotonicNanos() - began);
    if (flushed.ok() && (!state.Line('A', step - 1) || !state.Line('A', step)))
      return 1;
  }
  // The life before was killed behind a connection that hangs: the collector
  // takes it for alive until that ends, and refuses this one by name meanwhile.
  const absl::Time give_up = clock.Now() + absl::Seconds(60);
  absl::Status flushed;
  do {
    flushed =
        (*session)->Flush(v1::DURABILITY_COMMITTED, give_up - clock.Now());
    if (absl::IsAlreadyExists(flushed)) absl::SleepFor(absl::Milliseconds(100));
  } while (absl::IsAlreadyExists(flushed) && clock.Now() < give_up);
  if (!flushed.ok()) {
    std::fprintf(stderr, "agent %lld: %s; last error: %s\n",
                 static_cast<long long>(rank), flushed.ToString().c_str(),
                 (*session)->GetStats().last_error.c_str());
    return 3;
  }
  std::fprintf(stderr, "agent %lld: longest wait %lld ms\n",
               static_cast<long long>(rank),
               static_cast<long long>(longest_ns / 1000000));
  return state.Line('F', 0) ? 0 : 1;
}

}  // namespace rankprobe::crash
