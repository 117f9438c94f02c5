// SPDX-License-Identifier: Apache-2.0
// sim [--seed N | --seeds COUNT [--first N]] [--plant FAULT] [--trace]
//
// Runs simulated jobs (world.h) and prints the faults of each seed that has
// some. The same seed does the same: `sim --seed N --trace` prints what happened.
// Exit code 0: no fault.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace {

// Of one seed. A lock that a waiting fiber holds hangs for ever.
constexpr unsigned kAlarmSeconds = 200;
volatile uint64_t running_seed = 0;

void OnAlarm(int) {
  std::printf("seed %llu: hangs\n",
              static_cast<unsigned long long>(running_seed));
  std::fflush(stdout);
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 0, first = 1, seeds = 0;
  bool trace = false, verbose = false;
  double seconds = 0;
  auto plant = rankprobe::sim::Plant::kNone;
  CLI::App app("A whole job in one thread, in virtual time, by a seed.");
  app.add_option("--seed", seed, "this one alone");
  app.add_option("--seeds", seeds, "so many");
  app.add_option("--first", first, "of --seeds");
  app.add_option("--seconds", seconds, "at most so long; 0: no limit");
  app.add_option("--plant", plant, "a fault that is to be found")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, rankprobe::sim::Plant>{
              {"early_commit", rankprobe::sim::Plant::kEarlyCommit},
              {"early_sync", rankprobe::sim::Plant::kEarlySync},
              {"wrong_step", rankprobe::sim::Plant::kWrongStep},
              {"early_free", rankprobe::sim::Plant::kEarlyFree}}));
  app.add_flag("--trace", trace, "print what happens");
  app.add_flag("--verbose", verbose, "a line for each seed, and stderr");
  CLI11_PARSE(app, argc, argv);
  if (seed != 0) first = seed, seeds = 1;
  std::signal(SIGALRM, OnAlarm);
  // What the product says to a person is not what is looked at.
  if (!verbose && std::freopen("/dev/null", "w", stderr) == nullptr) return 2;
  uint64_t bad = 0, ran = 0, events = 0, steps = 0, applied = 0;
  int cuts = 0, moves = 0, rank_kills = 0, collector_kills = 0, crashes = 0,
      full = 0, flips = 0, bucket_faults = 0;
  uint64_t sealed = 0;
  absl::Duration virtual_time;
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         began)
        .count();
  };
  for (uint64_t s = first; s < first + seeds; ++s) {
    if (seconds > 0 && elapsed() > seconds) break;
    running_seed = s;
    ::alarm(kAlarmSeconds);
    std::vector<std::string> lines;
    auto world = std::make_unique<rankprobe::sim::World>(s, plant);
    const rankprobe::sim::Outcome outcome =
        world->Run(trace ? &lines : nullptr);
    world.reset();
    ::alarm(0);
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    if (verbose || !outcome.faults.empty()) {
      std::printf("seed %llu: trace %016llx, %llu events, %s\n",
                  static_cast<unsigned long long>(s),
                  static_cast<unsigned long long>(outcome.trace_hash),
                  static_cast<unsigned long long>(outcome.events),
                  absl::FormatDuration(outcome.virtual_time).c_str());
    }
    for (const std::string& fault : outcome.faults)
      std::printf("  %s\n", fault.c_str());
    std::fflush(stdout);
    bad += outcome.faults.empty() ? 0 : 1;
    ++ran;
    events += outcome.events;
    steps += outcome.steps;
    applied += outcome.applied;
    cuts += outcome.cuts;
    moves += outcome.moves;
    rank_kills += outcome.rank_kills;
    collector_kills += outcome.collector_kills;
    crashes += outcome.crashes;
    full += outcome.full_disks;
    flips += outcome.flips;
    bucket_faults += outcome.bucket_faults;
    sealed += outcome.sealed_steps;
    virtual_time += outcome.virtual_time;
  }
  std::printf(
      "%llu seeds, %llu with faults; %llu steps whole, %llu of them in the "
      "bucket "
      "too, %llu ranks switched; %d cuts, %d ranks moved, %d killed, %d "
      "collectors "
      "ended, "
      "%d machines down, %d full disks, %d flips, %d faults of the bucket; "
      "%llu "
      "events, %s in %.1f s\n",
      static_cast<unsigned long long>(ran),
      static_cast<unsigned long long>(bad),
      static_cast<unsigned long long>(steps - sealed),
      static_cast<unsigned long long>(sealed),
      static_cast<unsigned long long>(applied), cuts, moves, rank_kills,
      collector_kills, crashes, full, flips, bucket_faults,
      static_cast<unsigned long long>(events),
      absl::FormatDuration(virtual_time).c_str(), elapsed());
  return bad == 0 ? 0 : 1;
}
