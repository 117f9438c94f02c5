// SPDX-License-Identifier: Apache-2.0
// Many ranks in one process: real sessions over real sockets, no torch.
//   bench_ranks HOST:PORT RUN RANKS STEP_MS [FIRST_RANK WORLD_SIZE]
// Connects all ranks, prints "connected SECONDS" and waits on stdin: the line
// "step" begins stepping, every rank once in STEP_MS; end of file ends it.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/runtime/session/session.h"

namespace rankprobe {
namespace {

constexpr char kConfig[] = R"({"task": "statistics", "dump_path": "./dump",
  "rank": [], "step": [], "level": "L1", "dump_enable": false,
  "statistics": {}})";

int Main(int argc, char** argv) {
  int ranks = 0, step_ms = 0, first = 0, world = 0;
  if ((argc != 5 && argc != 7) || !absl::SimpleAtoi(argv[3], &ranks) ||
      !absl::SimpleAtoi(argv[4], &step_ms) ||
      (argc == 7 && (!absl::SimpleAtoi(argv[5], &first) ||
                     !absl::SimpleAtoi(argv[6], &world)))) {
    std::fprintf(stderr,
                 "usage: bench_ranks HOST:PORT RUN RANKS STEP_MS [FIRST_RANK "
                 "WORLD_SIZE]\n");
    return 2;
  }
  const SystemClock clock;
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Session>> sessions;
  for (int rank = first; rank < first + ranks; ++rank) {
    SessionOptions options;
    options.collector = argv[1];
    options.identity.set_run(argv[2]);
    options.identity.set_rank(rank);
    options.identity.set_pid(100000 + rank);
    options.identity.set_host(absl::StrCat("node", rank / 8));
    options.identity.set_world_size(argc == 7 ? world : ranks);
    options.config_json = kConfig;
    options.queue_budget_bytes = 1 << 20;
    options.drain_deadline = absl::Seconds(1);
    auto session = Session::Create(options, &clock);
    if (!session.ok()) {
      std::fprintf(stderr, "%s\n", session.status().ToString().c_str());
      return 1;
    }
    sessions.push_back(*std::move(session));
  }
  for (const auto& session : sessions) {
    if (const absl::Status status = session->WaitConnected(absl::Minutes(3));
        !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  std::printf("connected %.3f\n", std::chrono::duration<double>(
                                      std::chrono::steady_clock::now() - began)
                                      .count());
  std::fflush(stdout);

  std::atomic<bool> stop{false};
  std::thread stepper;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line != "step" || stepper.joinable()) continue;
    stepper = std::thread([&] {
      auto next = std::chrono::steady_clock::now();
      for (int64_t step = 0; !stop; ++step) {
        for (const auto& session : sessions) session->BeginStep(step);
        next += std::chrono::milliseconds(step_ms);
        std::this_thread::sleep_until(next);
      }
    });
  }
  stop = true;
  if (stepper.joinable()) stepper.join();
  // Sessions end in parallel: each says goodbye and waits for its stream.
  std::vector<std::thread> enders;
  for (auto& session : sessions)
    enders.emplace_back([&session] { session.reset(); });
  for (std::thread& thread : enders) thread.join();
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Main(argc, argv); }
