// SPDX-License-Identifier: Apache-2.0
// Statistics, checksum, digest and copy of one tensor larger than the caches,
// each compared with a plain read (or memcpy) of the same bytes in the same
// iteration. Counter `ratio` is the achieved share of the plain pass'
// bandwidth.
#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/io/crc32c.h"
#include "common/tensor/dtype.h"
#include "common/tensor/kernels/crc32.h"
#include "common/tensor/kernels/kernels.h"
#include "common/tensor/summary.h"
#include "tests/bench/paired.h"

namespace rankprobe {
namespace {

constexpr size_t kBytes = 128 << 20;

struct Buffers {
  std::vector<uint64_t> source, target;
};

// Values of every dtype in turn: random halves of moderate size, so that no
// float among them is NaN, infinite or denormal in any of the formats.
Buffers& Memory() {
  static Buffers* const buffers = [] {
    auto* b = new Buffers;
    b->source.resize(kBytes / 8);
    b->target.resize(kBytes / 8);
    std::mt19937_64 random(1);
    for (uint64_t& word : b->source) {
      word = (random() & 0x83ff83ff83ff83ff) | 0x3c003c003c003c00;
    }
    return b;
  }();
  return *buffers;
}

const char* Source() {
  return reinterpret_cast<const char*>(Memory().source.data());
}
char* Target() { return reinterpret_cast<char*>(Memory().target.data()); }

// The fastest read of this machine: vector loads, one exclusive-or each.
void PlainRead() {
  benchmark::DoNotOptimize(kernels::BestKernels().xor64(Source(), kBytes));
}
void PlainCopy() {
  std::memcpy(Target(), Source(), kBytes);
  benchmark::ClobberMemory();
}

void Summarise(v1::DType dtype, const SummaryRequest& request) {
  const int64_t size = static_cast<int64_t>(kBytes / ElementSize(dtype));
  const int64_t stride = 1;
  TensorView view;
  view.data = Source();
  view.dtype = dtype;
  view.sizes = absl::MakeConstSpan(&size, 1);
  view.strides = absl::MakeConstSpan(&stride, 1);
  benchmark::DoNotOptimize(Summarize(view, request));
}

struct Variant {
  const char* name;
  SummaryRequest request;
};

void Register(v1::DType dtype, const Variant& variant) {
  const bool copies = variant.request.copy_to != nullptr;
  const std::string name(TorchDtypeName(dtype).substr(std::strlen("torch.")));
  benchmark::RegisterBenchmark(
      ("summary/" + name + "/" + variant.name).c_str(),
      [dtype, request = variant.request, copies](benchmark::State& state) {
        const auto subject = [&] { Summarise(dtype, request); };
        if (copies) {
          bench::RunPaired(state, kBytes, PlainCopy, subject);
        } else {
          bench::RunPaired(state, kBytes, PlainRead, subject);
        }
      })
      ->UseManualTime();
}

void RegisterPass(const char* name, void (*pass)()) {
  benchmark::RegisterBenchmark(name, [pass](benchmark::State& state) {
    bench::RunPaired(state, kBytes, PlainRead, pass);
  })->UseManualTime();
}

// The cost of one call in addition to that of its bytes.
void SmallTensor(benchmark::State& state) {
  const int64_t sizes[2] = {state.range(0) / 256, 64};
  const int64_t strides[2] = {64, 1};
  TensorView view;
  view.data = Source();
  view.dtype = v1::DTYPE_FLOAT32;
  view.sizes = sizes;
  view.strides = strides;
  const SummaryRequest request;
  for (auto _ : state) benchmark::DoNotOptimize(Summarize(view, request));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void RegisterAll() {
  for (const v1::DType dtype :
       {v1::DTYPE_FLOAT32, v1::DTYPE_FLOAT16, v1::DTYPE_BFLOAT16,
        v1::DTYPE_FLOAT64, v1::DTYPE_INT8, v1::DTYPE_UINT8, v1::DTYPE_INT16,
        v1::DTYPE_INT32, v1::DTYPE_INT64, v1::DTYPE_BOOL}) {
    Register(dtype, {"statistics", {}});
  }
  SummaryRequest crc, exclusive_or, digest, copy, all;
  crc.checksum = ChecksumMode::kCrc32;
  exclusive_or.statistics = false;
  exclusive_or.checksum = ChecksumMode::kXor64;
  digest.digest = true;
  copy.copy_to = Target();
  all.digest = true;
  all.copy_to = Target();
  Register(v1::DTYPE_FLOAT32, {"statistics+crc32", crc});
  Register(v1::DTYPE_FLOAT32, {"xor64", exclusive_or});
  Register(v1::DTYPE_FLOAT32, {"statistics+xxh3", digest});
  Register(v1::DTYPE_FLOAT32, {"statistics+memcpy", copy});
  Register(v1::DTYPE_FLOAT32, {"statistics+xxh3+memcpy", all});
  RegisterPass(
      "pass/crc32",
      +[] { benchmark::DoNotOptimize(kernels::Crc32(0, Source(), kBytes)); });
  RegisterPass(
      "pass/crc32c", +[] {
        benchmark::DoNotOptimize(Crc32c({Source(), kBytes}));
      });
  RegisterPass(
      "pass/xxh3_128",
      +[] { benchmark::DoNotOptimize(XXH3_128bits(Source(), kBytes)); });
  RegisterPass("pass/memcpy", PlainCopy);
  benchmark::RegisterBenchmark("summary/float32/small", SmallTensor)
      ->Arg(1 << 10)
      ->Arg(16 << 10)
      ->Arg(256 << 10);
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  rankprobe::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("kernels",
                              rankprobe::kernels::BestKernels().name);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
