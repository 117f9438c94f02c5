// SPDX-License-Identifier: Apache-2.0
// Step times of the example's transformer in several modes, in turn: one step
// of each mode in random order, then the next of each, all in one process and
// on one thread, so that what one mode leaves behind (caches, heap, frames
// still on their way) falls on all alike.
// Every mode has a model, an optimizer, a debugger and a run of its own.
//   bench_steps HOST:PORT ROUNDS[xBURST] MODE=CONFIG.json..
// With a burst, of two or more, a round is so many steps of a mode one behind the
// other, behind two seconds in which what was left of others comes to its end; its
// times are those of the whole burst.
// A mode without a config file trains without rankprobe. The payloads of a mode
// whose name begins with "wire" go over the connection. Prints one JSON object
// a line: {"mode": .., "seconds": [..], "thread_seconds": [..]}. The second is
// CPU time of the training thread: it leaves out waiting, for the collector as
// well as for other programs of the machine. "stop_seconds" is the end of the
// step: waiting until its records are committed.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "examples/train_transformer/model.h"
#include "examples/train_transformer/text.h"

namespace {

constexpr int kWarmUpRounds = 3;
constexpr int64_t kBatch = 4;
constexpr std::chrono::seconds kCalm(2);

double WallSeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double ThreadSeconds() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class Mode {
 public:
  Mode(std::string name, const std::string& collector,
       const std::string& config_path)
      : name_(std::move(name)), generator_(at::detail::createCPUGenerator(7)) {
    if (!config_path.empty()) {
      rankprobe::DebuggerOptions options;
      options.config_path = config_path;
      options.agent.collector = collector;
      options.agent.run = name_;
      options.agent.rank = 0;
      ::setenv("RANKPROBE_LANE", absl::StartsWith(name_, "wire") ? "off" : "on",
               1);
      auto created = rankprobe::PrecisionDebugger::Create(options);
      if (!created.ok()) {
        std::fprintf(stderr, "%s: %s\n", name_.c_str(),
                     created.status().ToString().c_str());
        std::exit(1);
      }
      debugger_ = *std::move(created);
      const absl::Status connected =
          debugger_->recorder()->session()->WaitConnected(absl::Seconds(20));
      if (!connected.ok()) {
        std::fprintf(stderr, "%s\n", connected.ToString().c_str());
        std::exit(1);
      }
    }
    torch::manual_seed(1);
    // The transformer that msprobe was measured with.
    options_.width = 192;
    options_.heads = 4;
    options_.blocks = 4;
    options_.length = 96;
    model_ = Transformer(options_, Caller(debugger_.get()));
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        model_->parameters(), torch::optim::AdamWOptions(3e-4));
  }

  // `steps` one behind the other.
  void Round(const std::string& text, int steps, bool keep) {
    Times all;
    for (int i = 0; i < steps; ++i) {
      const Times step = Step(text);
      all.wall += step.wall;
      all.thread += step.thread;
      all.stop += step.stop;
    }
    if (!keep) return;
    stop_.push_back(all.stop);
    wall_.push_back(all.wall);
    thread_.push_back(all.thread);
  }

  void Print() const {
    std::printf(
        "{\"mode\": \"%s\", \"seconds\": %s, \"thread_seconds\": %s, "
        "\"stop_seconds\": %s}\n",
        name_.c_str(), List(wall_).c_str(), List(thread_).c_str(),
        List(stop_).c_str());
  }

 private:
  // Seconds.
  struct Times {
    double wall = 0, thread = 0, stop = 0;
  };

  Times Step(const std::string& text) {
    const auto [input, target] =
        RandomBatch(text, kBatch, options_.length, generator_);
    const double wall = WallSeconds(), thread = ThreadSeconds();
    if (debugger_ != nullptr) debugger_->Start();
    optimizer_->zero_grad();
    const at::Tensor logits = model_->forward(input);
    torch::nn::functional::cross_entropy(logits.view({-1, options_.vocabulary}),
                                         target.view({-1}))
        .backward();
    optimizer_->step();
    const double stop = WallSeconds();
    if (debugger_ != nullptr) {
      debugger_->Stop();
      debugger_->Step();
    }
    const double end = WallSeconds();
    return {end - wall, ThreadSeconds() - thread, end - stop};
  }

  static std::string List(const std::vector<double>& values) {
    std::ostringstream out;
    for (size_t i = 0; i < values.size(); ++i)
      out << (i == 0 ? "[" : ", ") << values[i];
    out << "]";
    return out.str();
  }

  const std::string name_;
  std::unique_ptr<rankprobe::PrecisionDebugger> debugger_;
  ModelOptions options_;
  Transformer model_{nullptr};
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  at::Generator generator_;
  std::vector<double> wall_, thread_, stop_;
};

}  // namespace

int main(int argc, char** argv) {
  int rounds = 0, burst = 1;
  const std::vector<std::string> turns =
      absl::StrSplit(argc < 4 ? "" : argv[2], 'x');
  if (turns.size() > 2 || !absl::SimpleAtoi(turns[0], &rounds) ||
      (turns.size() == 2 && !absl::SimpleAtoi(turns[1], &burst))) {
    std::fprintf(
        stderr,
        "usage: bench_steps HOST:PORT ROUNDS[xBURST] MODE=CONFIG.json..\n");
    return 2;
  }
  at::set_num_threads(1);
  const std::string text = LoadText("/usr/share/common-licenses");
  std::vector<std::unique_ptr<Mode>> modes;
  for (int i = 3; i < argc; ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    modes.push_back(std::make_unique<Mode>(parts.first, argv[1], parts.second));
  }
  std::mt19937 random(1);
  std::vector<Mode*> order;
  for (const auto& mode : modes) order.push_back(mode.get());
  for (int round = 0; round < rounds + kWarmUpRounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (Mode* const mode : order) {
      if (burst > 1) std::this_thread::sleep_for(kCalm);
      mode->Round(text, burst, round >= kWarmUpRounds);
    }
  }
  for (const auto& mode : modes) mode->Print();
  return 0;
}
