// SPDX-License-Identifier: Apache-2.0
// One pass of ours beside the four calls msprobe makes: max, min, mean, norm.
// `ratio` is how many times faster one pass is. One thread.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "common/tensor/summary.h"
#include "tests/bench/paired.h"

namespace rankprobe {
namespace {

constexpr int64_t kBytes = 128 << 20;

void Compare(benchmark::State& state, at::ScalarType type, v1::DType dtype) {
  const at::Tensor tensor =
      torch::randn({kBytes / static_cast<int64_t>(c10::elementSize(type))})
          .to(type);
  TensorView view;
  view.data = tensor.data_ptr();
  view.dtype = dtype;
  view.sizes = absl::MakeConstSpan(tensor.sizes().data(), 1);
  view.strides = absl::MakeConstSpan(tensor.strides().data(), 1);
  const at::NoGradGuard no_grad;
  bench::RunPaired(
      state, static_cast<double>(kBytes),
      [&] {
        benchmark::DoNotOptimize(tensor.max());
        benchmark::DoNotOptimize(tensor.min());
        benchmark::DoNotOptimize(tensor.mean());
        benchmark::DoNotOptimize(tensor.norm());
      },
      [&] { benchmark::DoNotOptimize(Summarize(view, {})); });
}
BENCHMARK_CAPTURE(Compare, float32, at::kFloat, v1::DTYPE_FLOAT32)
    ->UseManualTime();
BENCHMARK_CAPTURE(Compare, float64, at::kDouble, v1::DTYPE_FLOAT64)
    ->UseManualTime();
BENCHMARK_CAPTURE(Compare, bfloat16, at::kBFloat16, v1::DTYPE_BFLOAT16)
    ->UseManualTime();

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
