// SPDX-License-Identifier: Apache-2.0
// Benchmark of the store alone: records per second at each durability level,
// and payload bytes compared with a plain sequential write + fdatasync of the
// same bytes to the same disk in the same iteration (`ratio`: share of the
// plain rate).
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/store/store.h"
#include "common/io/crc32c.h"
#include "tests/bench/load.h"
#include "tests/bench/paired.h"

namespace rankprobe {
namespace {

constexpr int kRecordsPerFrame = 700;
constexpr int kFramesPerCommit = 16;
constexpr size_t kPayloadBytes = 16 << 20;
constexpr size_t kChunkBytes = (1 << 20) - 256;
constexpr size_t kTotalBytes = 256 << 20;
constexpr size_t kCommitBytes = 8 << 20;

class Bench {
 public:
  Bench() {
    StoreOptions options;
    options.data_dir = directory_.path() + "/data";
    absl::StatusOr<std::unique_ptr<Store>> store =
        Store::Open(options, file_system_.get(), &clock_);
    if (!store.ok()) std::abort();
    store_ = *std::move(store);
    identity_.set_run("bench");
    identity_.set_rank(0);
    identity_.set_incarnation(1);
    if (!store_->OpenIncarnation(identity_).ok()) std::abort();
  }

  // Numbers the next frames and commits them.
  void Commit(std::vector<v1::UploadFrame>* frames, size_t first, size_t last) {
    std::vector<FrameToStore> batch;
    for (size_t i = first; i < last; ++i) {
      (*frames)[i].set_sequence(++sequence_);
      batch.push_back({&identity_, &(*frames)[i]});
    }
    if (!store_->Commit(batch).ok()) std::abort();
  }

  Store* store() { return store_.get(); }
  FileSystem* file_system() { return file_system_.get(); }
  const std::string& path() const { return directory_.path(); }

 private:
  const bench::ScratchDirectory directory_;
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  const SystemClock clock_;
  v1::Identity identity_;
  uint64_t sequence_ = 0;
  std::unique_ptr<Store> store_;
};

void Records(benchmark::State& state) {
  const bool synced = state.range(0) != 0;
  Bench bench;
  std::vector<v1::UploadFrame> frames(kFramesPerCommit);
  uint64_t order = 0;
  for (v1::UploadFrame& frame : frames) {
    for (int i = 0; i < kRecordsPerFrame; ++i)
      bench::FillRecord(order++, frame.mutable_batch()->add_records());
  }
  int64_t step = 0;
  for (auto _ : state) {
    for (v1::UploadFrame& frame : frames) frame.mutable_batch()->set_step(step);
    ++step;
    bench.Commit(&frames, 0, frames.size());
    if (synced && !bench.store()->Sync().ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * kFramesPerCommit *
                          kRecordsPerFrame);
}
BENCHMARK(Records)->ArgName("synced")->Arg(0)->Arg(1)->UseRealTime();

void Payloads(benchmark::State& state) {
  Bench bench;
  std::vector<char> data(kTotalBytes);
  std::vector<v1::UploadFrame> frames;
  uint64_t seed = 0;
  // Not timed: new bytes and their frames.
  const auto prepare = [&] {
    bench::FillPayload(++seed, data.data(), data.size());
    frames.clear();
    for (size_t at = 0; at < kTotalBytes; at += kPayloadBytes) {
      const absl::string_view payload(data.data() + at, kPayloadBytes);
      const auto digest = bench::DigestOf(payload);
      for (size_t offset = 0; offset < kPayloadBytes; offset += kChunkBytes) {
        v1::PayloadChunk* chunk = frames.emplace_back().mutable_chunk();
        chunk->set_digest(digest.data(), digest.size());
        chunk->set_length_bytes(kPayloadBytes);
        chunk->set_offset_bytes(offset);
        const absl::string_view piece = payload.substr(offset, kChunkBytes);
        chunk->set_data(piece.data(), piece.size());
        chunk->set_crc32c(Crc32c(piece));
      }
    }
  };
  prepare();
  int files = 0;
  bench::RunPaired(
      state, kTotalBytes,
      [&] {
        auto file = bench.file_system()->OpenForWrite(
            absl::StrCat(bench.path(), "/plain", files++),
            FileSystem::OpenMode::kCreateNew);
        for (size_t at = 0; at < kTotalBytes; at += 1 << 20) {
          if (!(*file)->Append({data.data() + at, 1 << 20}).ok()) std::abort();
        }
        if (!(*file)->Sync().ok()) std::abort();
      },
      [&] {
        constexpr size_t kFrames = kCommitBytes / (1 << 20);
        for (size_t at = 0; at < frames.size(); at += kFrames) {
          bench.Commit(&frames, at, std::min(at + kFrames, frames.size()));
        }
        if (!bench.store()->Sync().ok()) std::abort();
      },
      prepare);
}
BENCHMARK(Payloads)->UseManualTime()->Iterations(5);

}  // namespace
}  // namespace rankprobe

BENCHMARK_MAIN();
