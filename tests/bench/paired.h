// SPDX-License-Identifier: Apache-2.0
// Measures two ways of passing over the same bytes in turn, so that what else
// the machine does falls on both. Header-only; one thread.
#ifndef RANKPROBE_TESTS_BENCH_PAIRED_H_
#define RANKPROBE_TESTS_BENCH_PAIRED_H_

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace rankprobe::bench {

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(),
                   values.begin() + static_cast<int64_t>(middle), values.end());
  return values[middle];
}

// Per iteration: `base`, then `subject`, then, not timed, `after`. Counters:
// GB/s of each (medians), and `ratio`, the median over the iterations of base
// time / subject time.
template <typename Base, typename Subject, typename After = void (*)()>
void RunPaired(
    benchmark::State& state, double bytes, const Base& base,
    const Subject& subject, const After& after = [] {}) {
  using Timer = std::chrono::steady_clock;
  std::vector<double> base_s, subject_s, ratios;
  for (auto _ : state) {
    const auto t0 = Timer::now();
    base();
    const auto t1 = Timer::now();
    subject();
    const auto t2 = Timer::now();
    const double b = std::chrono::duration<double>(t1 - t0).count();
    const double s = std::chrono::duration<double>(t2 - t1).count();
    base_s.push_back(b);
    subject_s.push_back(s);
    ratios.push_back(b / s);
    state.SetIterationTime(s);
    after();
  }
  state.counters["base_gb_s"] = bytes / Median(std::move(base_s)) / 1e9;
  state.counters["gb_s"] = bytes / Median(std::move(subject_s)) / 1e9;
  state.counters["ratio"] = Median(std::move(ratios));
}

}  // namespace rankprobe::bench

#endif  // RANKPROBE_TESTS_BENCH_PAIRED_H_
