// SPDX-License-Identifier: Apache-2.0
#include "tests/churn/sim_rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace rankprobe {
namespace {

constexpr int64_t kPidsPerRank = 10000;

void SleepMs(unsigned ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

}  // namespace

SimRank::SimRank(int64_t rank, Fleet* fleet, uint32_t seed)
    : rank_(rank), fleet_(fleet), random_(seed) {
  thread_ = std::thread([this] { Run(); });
}

SimRank::~SimRank() { thread_.join(); }

std::vector<SimRank::Life> SimRank::lives() const {
  absl::MutexLock lock(&mutex_);
  return lives_;
}

std::unique_ptr<Session> SimRank::Connect() {
  SessionOptions options;
  options.collector = fleet_->collector;
  options.identity.set_run(fleet_->run);
  options.identity.set_rank(rank_);
  options.identity.set_host("sim");
  options.agent_version = "churn";
  options.config_json = R"({"dump_path": "d", "dump_enable": false})";
  options.reconnect_min = absl::Milliseconds(20);
  options.reconnect_max = absl::Milliseconds(500);
  {
    absl::MutexLock lock(&mutex_);
    options.identity.set_pid(rank_ * kPidsPerRank +
                             static_cast<int64_t>(lives_.size()) + 1);
    lives_.push_back({options.identity.pid(), {}});
  }
  auto session = Session::Create(options, &clock_);
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().ToString().c_str());
    std::abort();
  }
  auto config = ParseConfig(options.config_json, {});
  (*session)->SetLocalPlan(std::make_shared<const Plan>(config->plan),
                           /*enabled=*/false);
  (*session)->WaitConnected(absl::Seconds(20)).IgnoreError();
  return *std::move(session);
}

void SimRank::Run() {
  std::unique_ptr<Session> session = Connect();
  std::atomic<int64_t>& mine = *fleet_->steps[static_cast<size_t>(rank_)];
  while (!fleet_->stop) {
    if (restart_.exchange(false)) {
      session.reset();
      SleepMs(random_() % 50);
      session = Connect();
    }
    const int64_t step = mine + 1;
    int64_t slowest = step;
    for (const auto& other : fleet_->steps)
      slowest = std::min<int64_t>(slowest, *other);
    if (step > slowest + fleet_->slack) {
      SleepMs(2);
      continue;
    }
    const ActivePlan plan = session->BeginStep(step);
    {
      absl::MutexLock lock(&mutex_);
      lives_.back().steps.push_back({step, plan.epoch, plan.enabled});
    }
    mine = step;
    // Now and then one is slow.
    SleepMs(10 + random_() % 20 + (random_() % 50 == 0 ? 100 : 0));
  }
}

}  // namespace rankprobe
