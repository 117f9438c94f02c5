// SPDX-License-Identifier: Apache-2.0
// The crash oracle: real agents and a real collector, killed and cut off at
// random; afterwards the archive must hold every acked item, once and bit by
// bit.
//
//   crash_oracle --collector-binary bin/rankprobed [--rounds 15] [--agents 3]
//                [--seed N] [--directory DIR] [--lane always|never]
//                [--flip-bytes N [--flips N]]
//
// Each round does one of: kill -9 of the collector, of an agent, of both; cut,
// half-cut or stall all connections. After --chapter rounds everything begins
// anew in an empty directory with the next seed, so that a long run stays
// small. The seed of each chapter is printed; the same seed makes the same
// choices. Three of four collectors take payloads through shared memory, unless
// --lane says otherwise. Exit code 0: clean.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/runtime/session/spool_delivery.h"
#include "tests/crash/checker.h"
#include "tests/crash/proxy.h"
#include "tests/crash/workload.h"

extern char** environ;

namespace rankprobe::crash {
namespace {

struct Flags {
  std::string collector_binary, directory;
  int rounds = 15;
  int chapter = 25;
  int agents = 3;
  uint64_t seed = 0;
  // The agent's side.
  bool agent = false, spool = false, kept = false;
  // Only looks at what is there.
  bool check = false;
  std::vector<std::string> states;
  std::string collector, state, spool_directory;
  // Whether collectors take payloads through shared memory; empty: most do.
  std::string lane;
  int64_t rank = 0, life = 0, pause_ms = 30;
  // Flips of bits by the proxy: one in so many bytes of a rank's, 0: none; and how
  // many there are to be, 0: as many as there happen to be.
  uint64_t flip_bytes = 0, flips = 0;
  bool small = false;
};

struct Totals {
  uint64_t steps = 0;
  int collector_kills = 0, agent_kills = 0, cuts = 0, lanes = 0;
  uint64_t flips = 0;
};

class Process {
 public:
  Process() = default;
  ~Process() { Kill(); }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Process& operator=(Process&& other) noexcept {
    Kill();
    pid_ = std::exchange(other.pid_, 0);
    return *this;
  }

  // `hold_sigterm`: it is delivered once the process asks for it (an agent that
  // has just begun would die of it before it can say that it is wanted).
  bool Start(const std::vector<std::string>& command, const std::string& log,
             bool hold_sigterm = false) {
    std::vector<char*> argv;
    argv.reserve(command.size() + 1);
    for (const std::string& word : command)
      argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0640);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t held;
    sigemptyset(&held);
    if (hold_sigterm) sigaddset(&held, SIGTERM);
    posix_spawnattr_setsigmask(&attributes, &held);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const int rc = ::posix_spawn(&pid_, argv[0], &actions, &attributes,
                                 argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0) pid_ = 0;
    return rc == 0;
  }
  void Kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // The exit code after SIGTERM, -1 if it had to be killed.
  int Terminate(absl::Duration patience) {
    if (pid_ == 0) return -1;
    ::kill(pid_, SIGTERM);
    const absl::Time deadline = absl::Now() + patience;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (absl::Now() > deadline) {
        Kill();
        return -1;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool Running() {
    if (pid_ == 0) return false;
    if (::waitpid(pid_, nullptr, WNOHANG) == 0) return true;
    pid_ = 0;
    return false;
  }

 private:
  pid_t pid_ = 0;
};

class Oracle {
 public:
  Oracle(const Flags& flags, const std::string& self, Totals* totals)
      : flags_(flags), self_(self), random_(flags.seed), totals_(totals) {}

  int Run() {
    if (!StartCollector()) return Give("the collector does not start");
    proxy_ = std::make_unique<Proxy>(port_);
    checker_ =
        std::make_unique<Checker>(absl::StrCat("127.0.0.1:", port_),
                                  flags_.seed, flags_.kept, flags_.small);
    // What a collector says is less.
    if (flags_.flip_bytes > 0)
      proxy_->Flip(flags_.flip_bytes, flags_.flip_bytes / 64 + 1, flags_.seed);
    agents_.resize(static_cast<size_t>(flags_.agents));
    lives_.resize(agents_.size(), 0);
    for (size_t rank = 0; rank < agents_.size(); ++rank) StartAgent(rank);
    for (int round = 1; round <= flags_.rounds; ++round) {
      absl::SleepFor(absl::Milliseconds(Pick(50, 400)));
      if (!Disturb()) return Give("the collector does not come back");
      for (size_t rank = 0; rank < agents_.size(); ++rank) {
        if (!agents_[rank].Running())
          return Give(absl::StrCat("agent ", rank, " ended by itself"));
      }
      // What is kept is on its way, and what a killed life had kept may wait
      // until its connection is known to have gone: all of it is asked for at
      // the end.
      if (round % 10 != 0 || flags_.kept) continue;
      checker_->Check(States());
      if (round % 50 == 0) checker_->Verify();
      std::printf("round %d: %llu steps checked, %zu faults\n", round,
                  static_cast<unsigned long long>(checker_->steps_checked()),
                  checker_->faults().size());
      std::fflush(stdout);
      if (!checker_->faults().empty()) return Give("the archive is wrong");
    }
    while (proxy_->flips() < flags_.flips) {
      absl::SleepFor(absl::Milliseconds(50));
      for (size_t rank = 0; rank < agents_.size(); ++rank) {
        if (!agents_[rank].Running())
          return Give(absl::StrCat("agent ", rank, " ended by itself"));
      }
    }
    // What comes to an end is to come to one.
    proxy_->Flip(0, 0, 0);
    totals_->flips += proxy_->flips();
    int bad = 0;
    for (Process& agent : agents_)
      bad += agent.Terminate(absl::Seconds(90)) == 0 ? 0 : 1;
    if (flags_.kept && !DeliverKept())
      return Give("what was kept is not delivered");
    checker_->Check(States());
    checker_->Verify();
    if (bad > 0)
      return Give(absl::StrCat(bad, " agents could not deliver what they had"));
    if (!checker_->faults().empty()) return Give("the archive is wrong");
    if (collector_.Terminate(absl::Seconds(60)) != 0)
      return Give("the collector did not end cleanly");
    // What was to be tried was tried.
    int on_lane = 0;
    for (const std::string& state : States())
      on_lane += std::filesystem::exists(state + kOnLane) ? 1 : 0;
    if (flags_.lane == "never" ? on_lane > 0
                               : flags_.lane == "always" && on_lane == 0)
      return Give(absl::StrCat(on_lane, " ranks used shared memory"));
    totals_->lanes += on_lane;
    std::ifstream log(Path("agents.log"));
    for (std::string line; std::getline(log, line);) {
      if (absl::StrContains(line, "longest wait"))
        std::printf("%s\n", line.c_str());
    }
    std::printf("chapter clean: %d rounds, %llu acked steps (seed %llu)\n",
                flags_.rounds,
                static_cast<unsigned long long>(checker_->steps_checked()),
                static_cast<unsigned long long>(flags_.seed));
    std::fflush(stdout);
    totals_->steps += checker_->steps_checked();
    return checker_->steps_checked() > 0 ? 0 : Give("nothing was recorded");
  }

 private:
  int Give(const std::string& what) {
    std::printf("FAILED: %s (seed %llu, files in %s)\n", what.c_str(),
                static_cast<unsigned long long>(flags_.seed),
                flags_.directory.c_str());
    if (checker_ != nullptr) {
      for (const std::string& fault : checker_->faults())
        std::printf("  %s\n", fault.c_str());
    }
    return 1;
  }

  // As `rankprobe deliver`, for ranks that do not come back.
  bool DeliverKept() {
    for (size_t rank = 0; rank < agents_.size(); ++rank) {
      SpoolDeliveryOptions options;
      options.directory = Path(absl::StrCat("spool", rank));
      options.collector = absl::StrCat("127.0.0.1:", port_);
      const absl::Time give_up = absl::Now() + absl::Seconds(60);
      for (;;) {
        const absl::StatusOr<SpoolDelivery> done = DeliverSpools(options);
        if (done.ok() && done->left.empty() && done->passed_over == 0) break;
        // A connection that hangs stands for a life that is over.
        if (absl::Now() > give_up) {
          std::printf("  rank %zu: %s\n", rank,
                      done.ok() ? done->left[0].reason.c_str()
                                : done.status().ToString().c_str());
          return false;
        }
        absl::SleepFor(absl::Milliseconds(100));
      }
    }
    return true;
  }

  int Pick(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random_);
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(flags_.directory, "/", name);
  }
  std::vector<std::string> States() const {
    std::vector<std::string> states;
    for (size_t rank = 0; rank < agents_.size(); ++rank)
      states.push_back(Path(absl::StrCat("state", rank)));
    return states;
  }

  bool StartCollector() {
    std::filesystem::remove(Path("port"));
    // Small segments and batches: many boundaries to die at.
    std::vector<std::string> command = {flags_.collector_binary,
                                        "--listen",
                                        absl::StrCat("127.0.0.1:", port_),
                                        "--data-dir",
                                        Path("data"),
                                        "--port-file",
                                        Path("port"),
                                        "--segment-bytes",
                                        "4194304",
                                        "--min-free-bytes",
                                        "0",
                                        "--commit-batch-bytes",
                                        "1048576",
                                        "--sync-interval-ms",
                                        "100",
                                        "--janitor-seconds",
                                        "1",
                                        "--log-level",
                                        "warning"};
    if (flags_.lane == "never" || (flags_.lane.empty() && Pick(0, 3) == 0))
      command.push_back("--no-lane");
    if (!collector_.Start(command, Path("collector.log"))) return false;
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline && collector_.Running()) {
      std::ifstream file(Path("port"));
      int port = 0;
      if (file >> port && port > 0) {
        port_ = port;
        return true;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  void StartAgent(size_t rank) {
    std::vector<std::string> command = {
        self_,         "--agent",
        "--collector", absl::StrCat("127.0.0.1:", proxy_->port()),
        "--rank",      absl::StrCat(rank),
        "--life",      absl::StrCat(lives_[rank]++),
        "--state",     Path(absl::StrCat("state", rank)),
        "--seed",      absl::StrCat(flags_.seed),
        "--pause-ms",  absl::StrCat(flags_.pause_ms)};
    if (flags_.small) command.push_back("--small");
    if (flags_.spool || flags_.kept) {
      command.push_back("--spool-directory");
      command.push_back(Path(absl::StrCat("spool", rank)));
      if (flags_.kept) command.push_back("--kept");
    }
    agents_[rank].Start(command, Path("agents.log"), /*hold_sigterm=*/true);
  }

  bool KillCollector() {
    ++totals_->collector_kills;
    collector_.Kill();
    absl::SleepFor(absl::Milliseconds(Pick(0, 300)));
    return StartCollector();
  }
  void KillAgent() {
    ++totals_->agent_kills;
    const auto rank =
        static_cast<size_t>(Pick(0, static_cast<int>(agents_.size()) - 1));
    agents_[rank].Kill();
    StartAgent(rank);
  }

  bool Disturb() {
    switch (Pick(0, 6)) {
      case 0:
      case 1:
        return KillCollector();
      case 2:
        KillAgent();
        return true;
      case 3:
        collector_.Kill();
        KillAgent();
        return KillCollector();
      case 4:
        proxy_->Cut();
        break;
      case 5:
        proxy_->Truncate();
        break;
      default:
        proxy_->Stall(absl::Milliseconds(Pick(50, 500)));
    }
    ++totals_->cuts;
    return true;
  }

  const Flags& flags_;
  const std::string self_;
  std::mt19937_64 random_;
  int port_ = 0;
  Process collector_;
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<Checker> checker_;
  std::vector<Process> agents_;
  std::vector<int64_t> lives_;
  Totals* const totals_;
};

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Kills and cuts off agents and collector at random and checks "
      "that nothing acked is lost.");
  app.add_option("--collector-binary", flags.collector_binary, "rankprobed");
  app.add_option("--directory", flags.directory, "for all files; a new one");
  app.add_option("--rounds", flags.rounds, "disturbances (15)");
  app.add_option("--chapter", flags.chapter,
                 "rounds until everything begins anew (25)");
  app.add_option("--agents", flags.agents, "ranks (3)");
  app.add_option("--seed", flags.seed, "0: a new one");
  app.add_flag("--spool", flags.spool, "agents keep a spool");
  app.add_flag("--kept", flags.kept,
               "the end of a step waits for the spool, not for the collector");
  app.add_option("--lane", flags.lane,
                 "whether payloads go through shared memory; left out: with "
                 "most collectors")
      ->check(CLI::IsMember({"always", "never"}));
  app.add_flag("--agent", flags.agent, "(internal) be an agent");
  app.add_flag("--check", flags.check,
               "compare the archive of --collector with --states, once");
  app.add_option("--states", flags.states, "with --check: of each rank");
  app.add_option("--collector", flags.collector, "(internal)");
  app.add_option("--state", flags.state, "(internal)");
  app.add_option("--spool-directory", flags.spool_directory, "(internal)");
  app.add_option("--rank", flags.rank, "(internal)");
  app.add_option("--life", flags.life, "(internal)");
  app.add_option("--pause-ms", flags.pause_ms, "of two steps (30)");
  app.add_option("--flip-bytes", flags.flip_bytes,
                 "flip a bit once in so many bytes that a rank sends, and once "
                 "in a 64th of that of what the collector sends (0: none)");
  app.add_option("--flips", flags.flips,
                 "go on behind the rounds until there were so many flips");
  app.add_flag("--small", flags.small, "payloads of some KiB");
  CLI11_PARSE(app, argc, argv);
  if (flags.check) {
    Checker checker(flags.collector, flags.seed, flags.kept, flags.small);
    checker.Check(flags.states);
    for (const std::string& fault : checker.faults())
      std::printf("  %s\n", fault.c_str());
    std::printf("%llu steps checked\n",
                static_cast<unsigned long long>(checker.steps_checked()));
    return checker.faults().empty() && checker.steps_checked() > 0 ? 0 : 1;
  }
  if (flags.agent) {
    return RunAgent(flags.collector, flags.seed, flags.rank, flags.life,
                    flags.state, flags.spool_directory, flags.kept,
                    absl::Milliseconds(flags.pause_ms), flags.small);
  }
  if (flags.seed == 0) flags.seed = std::random_device()() | 1u;
  std::printf("seed %llu\n", static_cast<unsigned long long>(flags.seed));
  std::fflush(stdout);
  bool made = false;
  if (flags.directory.empty()) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "rankprobe_oracleXXXXXX")
            .string();
    if (::mkdtemp(pattern.data()) == nullptr) return 2;
    flags.directory = pattern;
    made = true;
  }
  const std::string self =
      std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string directory = flags.directory;
  Totals totals;
  // Without rounds there is one chapter, of flips.
  for (int done = 0, chapter = 0; done < std::max(flags.rounds, 1); ++chapter) {
    Flags part = flags;
    part.rounds = std::min(flags.rounds - done, std::max(flags.chapter, 1));
    part.seed = flags.seed + static_cast<uint64_t>(chapter);
    part.directory = absl::StrCat(directory, "/chapter", chapter);
    std::filesystem::create_directories(part.directory);
    // What failed is left to be looked at.
    if (const int code = Oracle(part, self, &totals).Run(); code != 0)
      return code;
    std::filesystem::remove_all(part.directory);
    done += std::max(part.rounds, 1);
  }
  if (made) std::filesystem::remove_all(directory);
  std::printf(
      "clean: %d rounds, %llu acked steps, %d collector kills, %d agent kills, "
      "%d cuts, %llu flips, %d ranks with shared memory (seed %llu)\n",
      flags.rounds, static_cast<unsigned long long>(totals.steps),
      totals.collector_kills, totals.agent_kills, totals.cuts,
      static_cast<unsigned long long>(totals.flips), totals.lanes,
      static_cast<unsigned long long>(flags.seed));
  return 0;
}

}  // namespace
}  // namespace rankprobe::crash

int main(int argc, char** argv) {
  try {
    return rankprobe::crash::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "crash_oracle: %s\n", error.what());
    return 2;
  }
}
