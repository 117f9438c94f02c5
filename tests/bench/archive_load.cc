// SPDX-License-Identifier: Apache-2.0
// A synthetic archive of a long run of many ranks, and what questions about it
// take. Steps are committed, rolled up and summarised by the store and the
// makers of the collector; only the statistics are made up, and the records of a
// step are its beginning and its end.
//   bench_archive DIR [RANKS STEPS CALLS]     default 1024 10000 5000
// Makes run "ranks" (RANKS x STEPS, summaries alone) and run "calls" (one rank,
// STEPS x CALLS) where DIR does not hold them, then prints
//   name value limit met|missed|info
// Times are of the collector's code for the RPC, its answer serialised, medians
// of seven with the files in the page cache.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/query_grid.h"
#include "collector/archive/query_series.h"
#include "collector/archive/rollup.h"
#include "collector/archive/rollup_block.h"
#include "collector/archive/summary_reader.h"
#include "collector/store/step_summary.h"
#include "collector/store/store.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {
namespace {

constexpr int kRounds = 7;
constexpr int kTileRestSeconds = 6;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_archive: %s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

struct Size {
  int64_t ranks = 1024, steps = 10000, calls = 5000;
};

// Numbers as statistics are: extremes are of the tensor's float32, norm and mean
// are not.
double Made(uint64_t a, uint64_t b) {
  uint64_t x = (a * 0x9E3779B97F4A7C15u) ^ (b + 0x7F4A7C15u);
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  return 1 + static_cast<double>(x >> 11) / 0x1p53;
}

v1::Identity IdentityOf(const std::string& run, int64_t rank) {
  v1::Identity identity;
  identity.set_run(run);
  identity.set_rank(rank);
  identity.set_world_size(1);
  identity.set_host("bench");
  identity.set_pid(1000 + rank);
  identity.set_incarnation(0x1000000000000000u +
                           0x9E3779B9u * static_cast<uint64_t>(rank));
  return identity;
}

class Generator {
 public:
  Generator(Store* store, ManualClock* clock) : store_(store), clock_(clock) {}

  void Ranks(const Size& size) {
    std::vector<v1::Identity> identities;
    for (int64_t rank = 0; rank < size.ranks; ++rank)
      identities.push_back(IdentityOf("ranks", rank));
    for (int64_t step = 0; step < size.steps; ++step) {
      CommitStep(identities, step);
      for (const v1::Identity& identity : identities) {
        RollupRows rows;
        StepSummary summary;
        summary.made = summary.values = static_cast<uint64_t>(size.calls);
        const auto rank = static_cast<uint64_t>(identity.rank());
        const double norm = Made(rank, static_cast<uint64_t>(step));
        summary.norm = {norm, summary.made, 0};
        summary.max = {static_cast<float>(norm), summary.values, 0};
        summary.min = {-static_cast<float>(norm), summary.values, 0};
        FillHead(summary, &rows.head);
        rows.head.set_records(2);
        if (step == 0) rows.layouts.emplace_back(0, v1::RollupLayout());
        Must(store_->WriteRollup(Pending("ranks", identity, step), rows));
      }
      if (step % 1000 == 999)
        std::fprintf(stderr, "ranks: %lld steps\n",
                     static_cast<long long>(step + 1));
    }
    Rest();
  }

  // Bytes of the blocks of a step.
  uint64_t Calls(const Size& size) {
    const v1::Identity identity = IdentityOf("calls", 0);
    uint64_t bytes = 0;
    const auto blocks = static_cast<uint32_t>(
        (size.calls + kRollupBlockValues - 1) / kRollupBlockValues);
    for (int64_t step = 0; step < size.steps; ++step) {
      CommitStep({identity}, step);
      RollupRows rows;
      bytes = 0;
      for (uint32_t block = 0; block < blocks; ++block) {
        RollupBlockWriter writer;
        for (uint32_t slot = 0; slot < kRollupBlockValues; ++slot) {
          const int64_t call = block * kRollupBlockValues + slot;
          if (call >= size.calls) break;
          const double norm =
              Made(static_cast<uint64_t>(call), static_cast<uint64_t>(step));
          // Calls are of different sizes, some 2^10 between them.
          const double scale =
              std::ldexp(norm, static_cast<int>(call % 11) - 6);
          writer.Put(slot, kNorm, scale * 17);
          writer.Put(slot, kMean, (norm - 1.5) * scale / 1000);
          writer.Put(slot, kMax, static_cast<float>(scale));
          writer.Put(slot, kMin, -static_cast<float>(scale));
        }
        writer.AppendTo(block, &rows.columns);
      }
      for (const RollupColumnRow& column : rows.columns)
        bytes += column.bytes.size();
      if (step == 0) {
        v1::RollupLayout layout;
        layout.add_blocks(0);
        layout.add_blocks(blocks - 1);
        layout.set_statistics(1 << kMax | 1 << kMin | 1 << kMean | 1 << kNorm);
        for (int64_t call = 0; call < size.calls; ++call) {
          v1::RollupName name;
          name.set_entry(absl::StrCat("Module.layers.", call / 50, ".block.",
                                      call % 50, ".Linear.forward.0"));
          name.set_value("output.0");
          rows.names.emplace_back(static_cast<uint32_t>(call), name);
          layout.add_order(2 << 1);  // the next id of what calls made
        }
        rows.layouts.emplace_back(0, layout);
      }
      StepSummary summary;
      summary.made = summary.values = static_cast<uint64_t>(size.calls);
      summary.norm = {544, summary.made, 0};
      FillHead(summary, &rows.head);
      rows.head.set_records(2);
      Must(store_->WriteRollup(Pending("calls", identity, step), rows));
      if (step % 1000 == 999)
        std::fprintf(stderr, "calls: %lld steps\n",
                     static_cast<long long>(step + 1));
    }
    Rest();
    return bytes;
  }

 private:
  static PendingRollup Pending(const std::string& run,
                               const v1::Identity& identity, int64_t step) {
    PendingRollup pending;
    pending.run_number = run == "ranks" ? 1 : 2;
    pending.key.run = run;
    pending.key.step = step;
    pending.key.incarnation = identity.incarnation();
    return pending;
  }

  void CommitStep(const std::vector<v1::Identity>& identities, int64_t step) {
    std::vector<v1::UploadFrame> frames(identities.size());
    std::vector<FrameToStore> all(identities.size());
    for (size_t i = 0; i < frames.size(); ++i) {
      frames[i].set_sequence(static_cast<uint64_t>(step) + 1);
      v1::RecordBatch* const batch = frames[i].mutable_batch();
      batch->set_step(step);
      batch->add_records()->mutable_step_begin();
      v1::Record* const end = batch->add_records();
      end->set_order(1);
      end->mutable_step_end();
      all[i].identity = &identities[i];
      all[i].frame = &frames[i];
    }
    Must(store_->Commit(all));
  }

  // The rows of summaries of all levels.
  void Rest() {
    SummaryMaker maker(store_);
    for (int level = 0; level < kSummaryLevels; ++level) {
      clock_->Advance(absl::Seconds(kTileRestSeconds));
      Must(maker.MakePending([] { return false; }));
    }
    Must(store_->Sync());
  }

  Store* const store_;
  ManualClock* const clock_;
};

// The median in milliseconds, and the bytes of the answer.
struct Timed {
  double ms = 0;
  size_t bytes = 0;
};
Timed Time(const std::function<size_t()>& ask) {
  std::vector<double> times;
  Timed out;
  for (int i = 0; i < kRounds; ++i) {
    const MonotonicTime began = MonotonicNow();
    out.bytes = ask();
    times.push_back(absl::ToDoubleMilliseconds(Since(began)));
  }
  std::sort(times.begin(), times.end());
  out.ms = times[times.size() / 2];
  return out;
}

void Print(const std::string& name, double value, double limit) {
  if (limit > 0) {
    std::printf("%s %.4g <=%g %s\n", name.c_str(), value, limit,
                value <= limit ? "met" : "missed");
  } else {
    std::printf("%s %.4g - info\n", name.c_str(), value);
  }
}

size_t AskGrid(Store* store, const v1::QueryGridRequest& request,
               bool from_summaries) {
  size_t bytes = 0;
  std::string out;
  Must(QueryGrid(
      store, request, [] { return false; },
      [&](const v1::GridReply& reply) {
        if (reply.has_head() && reply.head().from_summaries() != from_summaries)
          return absl::InternalError("not read from where it should be");
        reply.SerializeToString(&out);
        bytes += out.size();
        return absl::OkStatus();
      }));
  return bytes;
}

// What heads would hold if each had a row of its own, and what the rows of
// summaries do, without keys. With keys, as LevelDB has compressed them, and of
// heads what is there: summaries_on_disk_mb.
void PrintSizes(Store* store, const Size& size) {
  const uint32_t run = Must(store->RunNumber("ranks"));
  uint64_t heads = 0, tiles = 0;
  for (int64_t rank = 0; rank < size.ranks; ++rank) {
    const ProcessRange all{IdentityOf("ranks", rank).incarnation(), 0,
                           std::numeric_limits<int64_t>::max()};
    Must(store->ForEachHeadIn(run, {&all, 1},
                              [&](size_t, int64_t, const v1::RollupHead& head) {
                                heads += head.ByteSizeLong();
                                return absl::OkStatus();
                              }));
    for (int level = 1; level <= kSummaryLevels; ++level) {
      Must(store->ForEachTileIn(run, level, {&all, 1},
                                [&](size_t, uint64_t, absl::string_view bytes) {
                                  tiles += bytes.size();
                                  return absl::OkStatus();
                                }));
    }
  }
  const double rank_steps = static_cast<double>(size.ranks * size.steps);
  Print("archive.head_bytes_a_rank_step",
        static_cast<double>(heads) / rank_steps, 0);
  Print("archive.summary_bytes_a_rank_step",
        static_cast<double>(tiles) / rank_steps, 16);
}

void Measure(Store* store, const Size& size) {
  const std::string over = absl::StrCat(size.ranks, "x", size.steps);
  v1::QueryGridRequest overview;
  overview.set_run("ranks");
  overview.set_rows(v1::GRID_ROWS_RANK);
  overview.set_packed(true);
  const Timed all = Time([&] { return AskGrid(store, overview, true); });
  Print(absl::StrCat("archive.overview_", over, "_ms"), all.ms, 100);
  Print(absl::StrCat("archive.overview_", over, "_answer_kb"),
        static_cast<double>(all.bytes) / 1e3, 0);
  // One screen of each step: nothing is joined.
  v1::QueryGridRequest part = overview;
  part.set_max_cells(1000000);
  part.set_first_step(size.steps / 2 + 17);
  part.set_last_step(size.steps / 2 + 216);
  Print("archive.overview_200_steps_ms",
        Time([&] { return AskGrid(store, part, true); }).ms, 100);
  part.clear_last_step();
  part.clear_first_step();
  part.set_max_cells(0);
  part.add_ranks(size.ranks / 2);
  Print("archive.one_rank_ms",
        Time([&] { return AskGrid(store, part, true); }).ms, 50);

  v1::QueryGridRequest call;
  call.set_run("calls");
  call.set_match("Module.layers.7.block.3.Linear.forward.0.output.0");
  call.set_packed(true);
  Print(absl::StrCat("archive.one_call_", size.steps, "_steps_ms"),
        Time([&] { return AskGrid(store, call, false); }).ms, 50);
  v1::QuerySeriesRequest series;
  *series.mutable_grid() = call;
  Print(absl::StrCat("archive.series_", size.steps, "_steps_ms"),
        Time([&] {
          size_t bytes = 0;
          Must(QuerySeries(
              store, series, [] { return false; },
              [&](const v1::SeriesReply& reply) {
                bytes += reply.ByteSizeLong();
                return absl::OkStatus();
              }));
          return bytes;
        }).ms,
        50);
  v1::ListModulesRequest names;
  names.set_run("calls");
  names.set_rows(v1::GRID_ROWS_MODULE);
  Print("archive.list_modules_ms",
        Time([&] { return Must(ListModules(store, names)).ByteSizeLong(); }).ms,
        50);
}

int Run(int argc, char** argv) {
  Size size;
  int64_t* const numbers[] = {&size.ranks, &size.steps, &size.calls};
  bool valid = argc == 2 || argc == 5;
  for (int i = 2; valid && i < argc; ++i)
    valid = absl::SimpleAtoi(argv[i], numbers[i - 2]) && *numbers[i - 2] > 0;
  if (!valid) {
    std::fprintf(stderr, "bench_archive DIR [RANKS STEPS CALLS]\n");
    return 2;
  }
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  ManualClock clock;
  StoreOptions options;
  options.data_dir = argv[1];
  const std::unique_ptr<Store> store =
      Must(Store::Open(options, files.get(), &clock));
  Generator generator(store.get(), &clock);
  if (!store->RunNumber("ranks").ok()) {
    MonotonicTime began = MonotonicNow();
    generator.Ranks(size);
    Print("archive.make_ranks_s", absl::ToDoubleSeconds(Since(began)), 0);
    // There are no blocks yet.
    store->CompactRollups();
    const Size whole;
    Print("archive.summaries_on_disk_mb",
          static_cast<double>(store->RollupBytes()) / 1e6,
          160.0 * static_cast<double>(size.ranks * size.steps) /
              static_cast<double>(whole.ranks * whole.steps));
    began = MonotonicNow();
    const uint64_t step_bytes = generator.Calls(size);
    Print("archive.make_calls_s", absl::ToDoubleSeconds(Since(began)), 0);
    Print(absl::StrCat("archive.step_of_", size.calls, "_calls_kb"),
          static_cast<double>(step_bytes) / 1e3, 120);
  }
  PrintSizes(store.get(), size);
  Measure(store.get(), size);
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Run(argc, argv); }
