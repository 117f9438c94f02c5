// SPDX-License-Identifier: Apache-2.0
// N ranks that each record so many MB/s, whether or not the collector keeps up;
// prints one JSON object.
//   overload_ranks HOST:PORT RUN RANKS MB_PER_SECOND_EACH SECONDS
// A step is 20 ms of waiting, in place of computing, and then its records and
// payloads; what the agent adds to the 20 ms is what training would feel.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "agent/runtime/session/session.h"
#include "common/tensor/summary.h"
#include "tests/bench/load.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(20);
constexpr size_t kPayloadBytes = 1 << 18;
constexpr uint64_t kBudgetBytes = 32 << 20;

struct Totals {
  absl::Mutex mutex;
  std::vector<double> step_ms;
  uint64_t offered = 0, lost_payloads = 0, lost_records = 0, peak_queue = 0;
};

int Run(const std::string& collector, const std::string& run, int64_t rank,
        double mb_per_second, double seconds, Totals* totals) {
  const SystemClock clock;
  SessionOptions options;
  options.collector = collector;
  options.identity.set_run(run);
  options.identity.set_rank(rank);
  options.queue_budget_bytes = kBudgetBytes;
  options.policy = OverflowPolicy::kDropNewest;
  options.drain_deadline = absl::Seconds(20);
  auto session = Session::Create(options, &clock);
  if (!session.ok() || !(*session)->WaitConnected(absl::Seconds(20)).ok())
    return 1;
  std::vector<char> data(kPayloadBytes);
  uint64_t seed = static_cast<uint64_t>(rank) << 32, offered = 0;
  bench::FillPayload(seed, data.data(), data.size());
  std::vector<double> step_ms;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  double due = 0;
  for (int64_t step = 0; absl::Now() < end; ++step) {
    absl::SleepFor(kStep);
    const absl::Time computed = absl::Now();
    (*session)->BeginStep(step);
    due += mb_per_second * 1e6 * absl::ToDoubleSeconds(kStep);
    uint64_t order = 0;
    while (due >= static_cast<double>(kPayloadBytes)) {
      due -= static_cast<double>(kPayloadBytes);
      offered += kPayloadBytes;
      v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
      std::unique_ptr<PayloadBuffer> buffer =
          (*session)->ReservePayload(kPayloadBytes, &reason);
      if (buffer != nullptr) {
        // New bytes each time, or they would travel once only.
        std::memcpy(data.data(), &++seed, sizeof(seed));
        std::memcpy(buffer->data(), data.data(), kPayloadBytes);
        (*session)->SubmitPayload(bench::DigestOf({data.data(), data.size()}),
                                  std::move(buffer));
      }
      auto records = std::make_unique<RecordBuffer>();
      records->batch()->set_step(step);
      bench::FillRecord(order++, records->Add());
      (*session)->SubmitRecords(std::move(records));
    }
    step_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - computed));
  }
  const SessionStats stats = (*session)->GetStats();
  absl::MutexLock lock(&totals->mutex);
  totals->step_ms.insert(totals->step_ms.end(), step_ms.begin(), step_ms.end());
  totals->offered += offered;
  totals->lost_payloads += stats.lost_payloads;
  totals->lost_records += stats.lost_records;
  totals->peak_queue = std::max(totals->peak_queue, stats.queue_peak_bytes);
  return 0;
}

int Main(int argc, char** argv) {
  int ranks = 0;
  double mb_per_second = 0, seconds = 0;
  if (argc != 6 || !absl::SimpleAtoi(argv[3], &ranks) ||
      !absl::SimpleAtod(argv[4], &mb_per_second) ||
      !absl::SimpleAtod(argv[5], &seconds)) {
    std::fprintf(stderr,
                 "overload_ranks HOST:PORT RUN RANKS MB_PER_SECOND SECONDS\n");
    return 2;
  }
  Totals totals;
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      failed += Run(argv[1], argv[2], rank, mb_per_second, seconds, &totals);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed > 0) return 1;
  absl::MutexLock lock(&totals.mutex);
  std::sort(totals.step_ms.begin(), totals.step_ms.end());
  double sum = 0;
  for (const double ms : totals.step_ms) sum += ms;
  const size_t n = std::max<size_t>(totals.step_ms.size(), 1);
  std::printf(
      "{\"offered_bytes\": %llu, \"lost_payloads\": %llu, \"lost_records\": "
      "%llu, \"added_ms_mean\": %.4f, \"added_ms_p99\": %.4f, "
      "\"queue_peak_bytes\": %llu, \"payload_bytes\": %zu}\n",
      static_cast<unsigned long long>(totals.offered),
      static_cast<unsigned long long>(totals.lost_payloads),
      static_cast<unsigned long long>(totals.lost_records),
      sum / static_cast<double>(n),
      totals.step_ms.empty() ? 0
                             : totals.step_ms[totals.step_ms.size() * 99 / 100],
      static_cast<unsigned long long>(totals.peak_queue), kPayloadBytes);
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Main(argc, argv); }
