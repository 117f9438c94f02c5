// SPDX-License-Identifier: Apache-2.0
// Many ranks, switched on and off while they stumble, lose their connections
// and restart. Checks that every switch that was answered took effect on
// exactly the announced step on every rank that was reported, that none was
// lost and none torn. Exit code 1 and a line for each fault otherwise.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "rankprobe/v1/control.grpc.pb.h"
#include "tests/churn/flaky_proxy.h"
#include "tests/churn/sim_rank.h"

namespace rankprobe {
namespace {

struct Flags {
  int port = 0;
  int ranks = 64;
  int cycles = 200;
  uint32_t seed = 1;
  double trouble = 1;
};

struct Told {
  bool enabled = false;
  int64_t for_steps = 0;
  v1::SwitchResult result;

  // What it announces for a step that is not before its first. A rank that
  // heard of it late may come when it is over.
  bool On(int64_t step) const {
    return enabled &&
           (for_steps == 0 || step < result.effective_at_step() + for_steps);
  }
};

class Churn {
 public:
  explicit Churn(const Flags& flags)
      : flags_(flags), random_(flags.seed), proxy_(flags.port) {
    fleet_.collector = "127.0.0.1:" + std::to_string(proxy_.port());
    fleet_.run = "churn" + std::to_string(flags.seed);
    for (int r = 0; r < flags.ranks; ++r)
      fleet_.steps.push_back(std::make_unique<std::atomic<int64_t>>(-1));
    for (int r = 0; r < flags.ranks; ++r) {
      ranks_.push_back(std::make_unique<SimRank>(
          r, &fleet_, flags.seed * 1000 + static_cast<uint32_t>(r)));
    }
    stub_ = v1::ControlService::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(flags.port),
                            grpc::InsecureChannelCredentials()));
  }

  int Run() {
    WaitForAll();
    const auto began = std::chrono::steady_clock::now();
    for (int cycle = 0; cycle < flags_.cycles; ++cycle) {
      Trouble();
      Switch(true);
      Trouble();
      Switch(false);
      if ((cycle + 1) % 20 == 0)
        std::printf("%d cycles\n", cycle + 1), std::fflush(stdout);
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began)
            .count();
    fleet_.stop = true;
    for (const auto& rank : ranks_) logs_.push_back(rank->lives());
    Check();
    std::printf(
        "{\"ranks\": %d, \"switches\": %zu, \"complete\": %d, \"applied\": "
        "%lld, \"not_followed\": %lld, \"refused\": %d, \"restarts\": %d, "
        "\"cuts\": %d, \"seconds\": %.1f, \"faults\": %d}\n",
        flags_.ranks, told_.size(), complete_, static_cast<long long>(applied_),
        static_cast<long long>(stragglers_), refused_, restarts_, proxy_.cuts(),
        seconds, faults_);
    return faults_ == 0 ? 0 : 1;
  }

 private:
  bool Chance(double p) {
    return std::uniform_real_distribution<>(0, 1)(random_) < p * flags_.trouble;
  }

  void WaitForAll() {
    for (int i = 0; i < 600; ++i) {
      grpc::ClientContext context;
      v1::ListAgentsRequest request;
      request.set_run(fleet_.run);
      v1::ListAgentsResponse response;
      stub_->ListAgents(&context, request, &response);
      if (response.agents_size() >= flags_.ranks) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    Fault("not all ranks connected within 30 s");
  }

  void Trouble() {
    if (Chance(0.3)) {
      ranks_[random_() % ranks_.size()]->Restart();
      ++restarts_;
    }
    if (Chance(0.4)) proxy_.Cut(random_());
    // Sometimes in the middle of the switch that follows.
    if (Chance(0.5)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 120));
    }
  }

  void Switch(bool enable) {
    v1::SetDumpEnableRequest request;
    request.set_run(fleet_.run);
    request.set_enable(enable);
    request.mutable_options()->set_timeout_ms(8000);
    Told told;
    told.enabled = enable;
    if (enable && random_() % 3 == 0) told.for_steps = 1 + random_() % 3;
    request.mutable_options()->set_for_steps(told.for_steps);
    grpc::ClientContext context;
    const grpc::Status status =
        stub_->SetDumpEnable(&context, request, &told.result);
    if (!status.ok()) {
      // Told to the operator; nothing may have happened then.
      ++refused_;
      std::printf("switch refused: %s\n", status.error_message().c_str());
      return;
    }
    told_.push_back(told);
  }

  template <typename... Args>
  void Fault(const absl::FormatSpec<Args...>& format, const Args&... args) {
    ++faults_;
    std::fprintf(stderr, "%s\n", absl::StrFormat(format, args...).c_str());
  }

  void Check() {
    std::map<uint64_t, const Told*> by_epoch;
    for (const Told& told : told_) by_epoch[told.result.epoch()] = &told;
    for (const Told& told : told_) CheckAnswer(told);
    for (size_t r = 0; r < logs_.size(); ++r) {
      for (const SimRank::Life& life : logs_[r]) CheckLife(r, life, by_epoch);
    }
  }

  // What the operator was told, against what the ranks wrote down.
  void CheckAnswer(const Told& told) {
    const uint64_t epoch = told.result.epoch();
    const int64_t step = told.result.effective_at_step();
    int followed = 0;
    for (const v1::RankSwitch& rank : told.result.ranks()) {
      if (rank.state() != v1::RankSwitch::STATE_APPLIED) {
        ++stragglers_;
        if (rank.reason().empty() &&
            rank.state() != v1::RankSwitch::STATE_PREPARED)
          Fault("epoch %d: rank %d did not follow and no reason is given",
                epoch, rank.rank());
        continue;
      }
      ++followed;
      ++applied_;
      const SimRank::StepLog* first = nullptr;
      for (const SimRank::Life& life :
           logs_[static_cast<size_t>(rank.rank())]) {
        if (life.pid != rank.pid()) continue;
        for (const SimRank::StepLog& log : life.steps) {
          if (log.epoch == epoch && first == nullptr) first = &log;
        }
      }
      if (first == nullptr) {
        Fault("epoch %d: rank %d was reported and never ran it: lost", epoch,
              rank.rank());
      } else if (first->step != rank.applied_step() ||
                 (rank.applied_step() == step && first->step != step)) {
        Fault("epoch %d: rank %d was reported at step %d and ran it at %d",
              epoch, rank.rank(), rank.applied_step(), first->step);
      } else if (first->enabled != told.On(first->step)) {
        Fault("epoch %d: rank %d ran it the wrong way round", epoch,
              rank.rank());
      }
    }
    if (followed == flags_.ranks) ++complete_;
  }

  // No step under a plan before its time, none after it was over, none under a
  // plan older than one before it.
  void CheckLife(size_t rank, const SimRank::Life& life,
                 const std::map<uint64_t, const Told*>& by_epoch) {
    uint64_t newest = 0;
    for (const SimRank::StepLog& log : life.steps) {
      if (log.epoch < newest)
        Fault("rank %zu went back from epoch %d to %d", rank, newest,
              log.epoch);
      newest = std::max(newest, log.epoch);
      const auto it = by_epoch.find(log.epoch);
      if (it == by_epoch.end()) continue;
      const Told& told = *it->second;
      const int64_t first = told.result.effective_at_step();
      if (log.step < first)
        Fault("rank %zu ran epoch %d at step %d, before %d: torn", rank,
              log.epoch, log.step, first);
      const bool on = told.On(log.step);
      if (log.enabled != on)
        Fault("rank %zu, epoch %d, step %d: dumping %d, announced %d", rank,
              log.epoch, log.step, log.enabled, on);
    }
  }

  const Flags flags_;
  std::mt19937 random_;
  FlakyProxy proxy_;
  Fleet fleet_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::unique_ptr<v1::ControlService::Stub> stub_;
  std::vector<Told> told_;
  std::vector<std::vector<SimRank::Life>> logs_;
  int faults_ = 0, complete_ = 0, refused_ = 0, restarts_ = 0;
  int64_t applied_ = 0, stragglers_ = 0;
};

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  rankprobe::Flags flags;
  CLI::App app("Switches simulated ranks on and off under trouble.");
  app.add_option("--port", flags.port, "rankprobed on loopback")->required();
  app.add_option("--ranks", flags.ranks)->check(CLI::Range(1, 4096));
  app.add_option("--cycles", flags.cycles)->check(CLI::Range(1, 100000));
  app.add_option("--seed", flags.seed);
  app.add_option("--trouble", flags.trouble, "0: none; 1: as usual");
  CLI11_PARSE(app, argc, argv);
  return rankprobe::Churn(flags).Run();
}
