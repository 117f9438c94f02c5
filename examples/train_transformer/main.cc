// SPDX-License-Identifier: Apache-2.0
// One rank of a small data-parallel training job with the debugger attached.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "examples/train_transformer/data_parallel.h"
#include "examples/train_transformer/model.h"
#include "examples/train_transformer/text.h"

namespace {

volatile std::sig_atomic_t g_stop = 0;
void OnSignal(int) { g_stop = 1; }

struct Flags {
  int rank = 0, world_size = 1, threads = 1;
  int64_t steps = 100, batch = 4, seed = 1, pause_ms = 0;
  ModelOptions model;
  std::string host = "127.0.0.1";
  std::string store, collector, run, config, step_log, stop_file, steps_from;
  std::string text = "/usr/share/common-licenses";
  bool no_agent = false;
  std::string inject_nan, corrupt_replica;
};

// "RANK:STEP:REST": what to break, where and when.
struct Fault {
  int rank = -1;
  int64_t step = -1;
  std::string what;

  static Fault Parse(const std::string& text) {
    Fault fault;
    const size_t first = text.find(':'), second = text.find(':', first + 1);
    if (first == std::string::npos) return fault;
    fault.rank = std::stoi(text.substr(0, first));
    fault.step = std::stoll(text.substr(first + 1, second - first - 1));
    if (second != std::string::npos) fault.what = text.substr(second + 1);
    return fault;
  }
};

// Waits for the next byte of `grants`: each of them is one step. False at the end
// of the file, and after SIGTERM.
bool WaitForStep(int grants) {
  char byte;
  ssize_t got;
  do {
    got = ::read(grants, &byte, 1);
  } while (got < 0 && errno == EINTR && g_stop == 0);
  return got == 1;
}

int Train(const Flags& flags) {
  torch::manual_seed(flags.seed);
  at::set_num_threads(flags.threads);
  const std::string text = LoadText(flags.text);
  if (text.size() < 1000) {
    std::fprintf(stderr, "no text to train on in %s\n", flags.text.c_str());
    return 1;
  }
  std::unique_ptr<rankprobe::PrecisionDebugger> debugger;
  if (!flags.no_agent) {
    rankprobe::DebuggerOptions options;
    options.config_path = flags.config;
    options.agent.collector = flags.collector;
    options.agent.run = flags.run;
    options.agent.rank = flags.rank;
    options.agent.world_size = flags.world_size;
    auto created = rankprobe::PrecisionDebugger::Create(options);
    if (!created.ok()) {
      std::fprintf(stderr, "%s\n",
                   std::string(created.status().message()).c_str());
      return 2;
    }
    debugger = *std::move(created);
  }
  DataParallel group(flags.store, flags.host, flags.rank, flags.world_size);
  const ModelOptions& model_options = flags.model;
  const Fault nan = Fault::Parse(flags.inject_nan);
  const Fault corruption = Fault::Parse(flags.corrupt_replica);
  std::string poisoned;
  Transformer model(model_options, Caller(debugger.get(), &poisoned));
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(3e-4));
  at::Generator generator = at::detail::createCPUGenerator(
      static_cast<uint64_t>(flags.seed * 1000 + flags.rank));
  std::ofstream log;
  if (!flags.step_log.empty()) log.open(flags.step_log);
  int grants = -1;
  if (!flags.steps_from.empty()) {
    grants = ::open(flags.steps_from.c_str(), O_RDONLY | O_CLOEXEC);
    if (grants < 0) {
      std::fprintf(stderr, "cannot read %s\n", flags.steps_from.c_str());
      return 2;
    }
  }
  for (int64_t step = 0; step < flags.steps; ++step) {
    const bool last = grants >= 0 && !WaitForStep(grants);
    const auto began = std::chrono::steady_clock::now();
    const auto [input, target] =
        RandomBatch(text, flags.batch, model_options.length, generator);
    if (debugger != nullptr) debugger->Start();
    const bool dumping = debugger != nullptr && debugger->recording();
    poisoned = nan.rank == flags.rank && nan.step == step ? nan.what : "";
    optimizer.zero_grad();
    const at::Tensor logits = model->forward(input);
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        logits.view({-1, model_options.vocabulary}), target.view({-1}));
    loss.backward();
    const bool want_stop =
        g_stop != 0 || last ||
        (!flags.stop_file.empty() && std::filesystem::exists(flags.stop_file));
    const bool stop = group.AverageGradients(model->parameters(), want_stop);
    optimizer.step();
    if (corruption.rank == flags.rank && corruption.step == step) {
      const at::NoGradGuard guard;
      model->parameters().front().view(-1)[0] += 1;
    }
    if (debugger != nullptr) {
      debugger->ReportLoss(loss.item<double>());
      debugger->ReportReplica(model->parameters());
      debugger->Stop();
      debugger->Step();
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began)
            .count();
    if (log.is_open()) {
      const float value = loss.item<float>();
      log << "{\"step\": " << step << ", \"loss\": "
          << (std::isfinite(value) ? std::to_string(value) : "null")
          << ", \"seconds\": " << seconds
          << ", \"dumping\": " << (dumping ? "true" : "false") << "}"
          << std::endl;
    }
    if (stop) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(flags.pause_ms));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Trains a small transformer on bytes of text, data-parallel over gloo, "
      "with rankprobe attached.");
  app.add_option("--rank", flags.rank, "global rank")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--world-size", flags.world_size, "number of ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--store", flags.store, "file through which the ranks meet");
  app.add_option("--host", flags.host,
                 "name under which the other ranks reach this one");
  app.add_option("--steps", flags.steps, "most steps to train");
  app.add_option("--batch", flags.batch, "windows per rank and step");
  app.add_option("--seed", flags.seed, "of weights and batches");
  app.add_option("--width", flags.model.width, "of the residual stream")
      ->check(CLI::PositiveNumber);
  app.add_option("--heads", flags.model.heads, "of attention; divides --width")
      ->check(CLI::PositiveNumber);
  app.add_option("--blocks", flags.model.blocks, "of the transformer")
      ->check(CLI::PositiveNumber);
  app.add_option("--length", flags.model.length, "bytes of a window")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", flags.threads, "threads of PyTorch")
      ->check(CLI::PositiveNumber);
  app.add_option("--text", flags.text, "directory with text files");
  app.add_option("--collector", flags.collector,
                 "HOST:PORT (else RANKPROBE_COLLECTOR)");
  app.add_option("--run", flags.run, "name of the run (else RANKPROBE_RUN)");
  app.add_option("--config", flags.config, "config.json");
  app.add_option("--step-log", flags.step_log,
                 "file for one JSON object a step");
  app.add_option("--stop-file", flags.stop_file,
                 "finish, all ranks in the same step, once this file exists");
  app.add_option("--pause-ms", flags.pause_ms, "after each step")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--steps-from", flags.steps_from,
                 "file or named pipe: each byte read from it is one step; at "
                 "its end all ranks finish with the same step");
  app.add_option("--inject-nan", flags.inject_nan,
                 "RANK:STEP:MODULE: make that module's input NaN, once");
  app.add_option("--corrupt-replica", flags.corrupt_replica,
                 "RANK:STEP: change one weight of that rank only");
  app.add_flag("--no-agent", flags.no_agent, "train without rankprobe");
  CLI11_PARSE(app, argc, argv);
  if (flags.world_size > 1 && flags.store.empty()) {
    std::fprintf(stderr, "--store is needed with more than one rank\n");
    return 2;
  }
  if (flags.model.width % flags.model.heads != 0) {
    std::fprintf(stderr, "--heads must divide --width\n");
    return 2;
  }
  // Without SA_RESTART: the signal ends the wait for a step.
  struct sigaction on_term = {};
  on_term.sa_handler = OnSignal;
  sigaction(SIGTERM, &on_term, nullptr);
  try {
    return Train(flags);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", flags.rank, e.what());
    return 1;
  }
}
