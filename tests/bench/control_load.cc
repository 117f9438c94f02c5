// SPDX-License-Identifier: Apache-2.0
// Control of very many ranks, without their sessions and without anything to
// record: what a root and its leaves do in a switch.
//   bench_control HOST:PORT PID RANKS LEAVES STEP_MS SWITCHES DIRECTORY
// The root is a rankprobed, of that process id. The leaves are in this process,
// each with its own control plane, archive and link to the root, over one
// connection. Ranks are the agents' half of a switch alone (PlanSwitcher): they ask
// the root for their leaf, and talk to its control plane in memory where a session
// would be. All begin a step together, once in STEP_MS.
// Prints one line of JSON.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "collector/control/control_plane.h"
#include "collector/control/relay_queue.h"
#include "collector/server/root_link.h"
#include "collector/store/store.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"
#include "common/base/monotonic_time.h"
#include "common/io/file_system.h"
#include "common/rpc/grpc_channel.h"
#include "rankprobe/v1/control.grpc.pb.h"
#include "rankprobe/v1/leaf.grpc.pb.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/simulated_rank.h"

namespace rankprobe {
namespace {

constexpr char kRun[] = "many";
// Of a rankprobed.
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kIdleLook = absl::Seconds(4);
// That answer for ranks, which have a machine of their own elsewhere.
constexpr size_t kRankThreads = 2;
constexpr size_t kKinds = 32;

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "bench_control: %s\n", why.c_str());
  std::_Exit(1);
}

// How many of each kind, by the number of its field.
class Counts {
 public:
  void Note(int kind) { ++counts_[static_cast<size_t>(kind) % kKinds]; }
  std::array<uint64_t, kKinds> Now() const {
    std::array<uint64_t, kKinds> now{};
    for (size_t i = 0; i < kKinds; ++i) now[i] = counts_[i];
    return now;
  }

 private:
  std::array<std::atomic<uint64_t>, kKinds> counts_{};
};

// One collector of several, as rankprobed puts it together.
struct Leaf {
  std::string name;
  std::unique_ptr<Store> store;
  RelayQueue relay;
  std::unique_ptr<ControlPlane> control;
  std::unique_ptr<RootLink> link;
};

struct Rank {
  Leaf* leaf = nullptr;
  std::string session;
  SimulatedRank rank;
};

class Bench {
 public:
  Bench(std::string root, int ranks, int leaves, int step_ms)
      : root_(std::move(root)),
        step_(absl::Milliseconds(step_ms)),
        channel_(MakeChannel(root_, {}, Unlimited())),
        finder_(v1::RootService::NewStub(channel_)),
        control_(v1::ControlService::NewStub(channel_)),
        leaves_(static_cast<size_t>(leaves)),
        ranks_(static_cast<size_t>(ranks)) {}

  ~Bench() {
    stop_.Set();
    for (std::thread& thread : threads_) thread.join();
    {
      absl::MutexLock lock(&mutex_);
      ending_ = true;
    }
    for (std::thread& thread : answering_) thread.join();
    for (Leaf& leaf : leaves_) {
      if (leaf.link != nullptr) leaf.link->Stop();
    }
  }

  void StartLeaves(const std::string& directory) {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      Leaf& leaf = leaves_[i];
      leaf.name = absl::StrFormat("%032x", i + 1);
      StoreOptions store;
      store.data_dir = absl::StrCat(directory, "/leaf", i);
      store.min_free_bytes = 0;
      auto opened = Store::Open(store, file_system_.get(), &clock_);
      if (!opened.ok()) Fail(opened.status().ToString());
      leaf.store = *std::move(opened);
      ControlPlane::Options options;
      options.own_thread = true;
      options.one_of_several = true;
      options.relay = [this, &leaf](v1::RelayedEvent event) {
        events_.Note(event.has_gone() ? 0 : event.event().event_case());
        leaf.relay.Push(std::move(event));
      };
      leaf.control = std::make_unique<ControlPlane>(options, leaf.store.get(),
                                                    leaf.store.get(), &clock_);
      RootLink::Options link;
      link.root = root_;
      link.leaf = leaf.name;
      link.address = absl::StrCat("127.0.0.1:", i + 1);
      link.max_ranks = 4096;
      link.agents = [this, &leaf] {
        ++reports_;
        return leaf.control->agents().List("");
      };
      link.relay = &leaf.relay;
      link.say = [this, &leaf](const std::string& session,
                               const v1::Directive& directive) {
        directives_.Note(directive.directive_case());
        leaf.control->agents().Say(session, directive);
      };
      link.healthy = [] { return true; };
      link.runs = [&leaf] { return leaf.store->RunNames(); };
      link.answer = [](const v1::LiveQuestion&) {};
      leaf.link = std::make_unique<RootLink>(std::move(link), &logger_);
      leaf.link->Start();
    }
    threads_.emplace_back([this] {
      while (!stop_.WaitFor(kTick)) {
        for (Leaf& leaf : leaves_) leaf.control->Tick();
      }
    });
    for (size_t i = 0; i < kRankThreads; ++i)
      answering_.emplace_back([this] { AnswerForRanks(); });
  }

  // Each as its agent would: asks for its leaf, says hello there.
  void Connect() {
    std::map<std::string, Leaf*> by_name;
    for (Leaf& leaf : leaves_) by_name[leaf.name] = &leaf;
    const MonotonicTime end = MonotonicAfter(absl::Minutes(3));
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const v1::Hello hello = SimulatedRank::HelloOf(kRun, i, ranks_.size());
      v1::FindCollectorRequest request;
      *request.mutable_identity() = hello.identity();
      v1::FoundCollector found;
      while (true) {
        grpc::ClientContext context;
        const grpc::Status status =
            finder_->FindCollector(&context, request, &found);
        if (status.ok()) break;
        // Its leaves are on their way.
        if (status.error_code() != grpc::StatusCode::ABORTED ||
            MonotonicNow() >= end || stop_.WaitFor(kTick))
          Fail(status.error_message());
      }
      Rank& rank = ranks_[i];
      rank.leaf = by_name.at(found.leaf());
      auto admission = rank.leaf->control->agents().Admit(
          hello, [this, i](const v1::Directive& d) { Take(i, d); });
      if (!admission.ok()) Fail(admission.status().ToString());
      rank.session = admission->welcome.session_id();
    }
  }

  // Until the root's status has them all, with their steps.
  void AwaitStatus(bool stepping) {
    const MonotonicTime end = MonotonicAfter(absl::Minutes(2));
    for (;;) {
      const v1::ListAgentsResponse all = Status();
      const auto there = std::count_if(
          all.agents().begin(), all.agents().end(), [&](const auto& agent) {
            return agent.connected() && (!stepping || agent.step() > 1);
          });
      if (static_cast<size_t>(there) == ranks_.size()) return;
      if (MonotonicNow() >= end)
        Fail(absl::StrCat("the root has ", there, " ranks"));
      (void)stop_.WaitFor(absl::Milliseconds(100));
    }
  }

  v1::ListAgentsResponse Status() {
    grpc::ClientContext context;
    v1::ListAgentsRequest request;
    request.set_run(kRun);
    v1::ListAgentsResponse response;
    const grpc::Status status =
        control_->ListAgents(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
    return response;
  }

  void BeginSteps() {
    threads_.emplace_back([this] {
      MonotonicTime next = MonotonicNow();
      for (int64_t step = 0; !stop_.WaitFor(Until(next)); ++step) {
        for (Rank& rank : ranks_) BeginStep(step, &rank);
        next += absl::ToChronoNanoseconds(step_);
      }
    });
  }

  struct Switched {
    // Until the first rank was told that it is decided, the last one was, and
    // the operator was answered that all are at the step.
    double decided = 0, told = 0, done = 0;
    uint32_t attempts = 0;
  };
  Switched Switch(bool enable) {
    {
      absl::MutexLock lock(&mutex_);
      commits_ = 0;
      began_ = MonotonicNow();
    }
    grpc::ClientContext context;
    v1::SetDumpEnableRequest request;
    request.set_run(kRun);
    request.set_enable(enable);
    request.mutable_options()->set_timeout_ms(120000);
    v1::SwitchResult result;
    const grpc::Status status =
        control_->SetDumpEnable(&context, request, &result);
    const MonotonicTime end = MonotonicNow();
    if (!status.ok()) Fail(status.error_message());
    const auto followed = std::count_if(
        result.ranks().begin(), result.ranks().end(), [&](const auto& rank) {
          return rank.state() == v1::RankSwitch::STATE_APPLIED &&
                 rank.applied_step() == result.effective_at_step();
        });
    if (static_cast<size_t>(followed) != ranks_.size())
      Fail(absl::StrCat("a switch: ", result.summary()));
    absl::MutexLock lock(&mutex_);
    return {Seconds(first_commit_), Seconds(last_commit_), Seconds(end),
            result.attempts()};
  }

  std::array<uint64_t, kKinds> events() const { return events_.Now(); }
  std::array<uint64_t, kKinds> directives() const { return directives_.Now(); }
  uint64_t reports() const { return reports_; }
  void WaitIdle() { (void)stop_.WaitFor(kIdleLook); }

 private:
  static grpc::ChannelArguments Unlimited() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return arguments;
  }

  double Seconds(MonotonicTime at) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return absl::ToDoubleSeconds(absl::FromChrono(at - began_));
  }

  // Called under the lock of the rank's control plane.
  void Take(size_t rank, const v1::Directive& directive) {
    absl::MutexLock lock(&mutex_);
    taken_.emplace_back(rank, directive);
  }

  void AnswerForRanks() {
    const auto any = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return ending_ || !taken_.empty();
    };
    for (;;) {
      std::pair<size_t, v1::Directive> next;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&any));
        if (taken_.empty()) return;
        next = std::move(taken_.front());
        taken_.pop_front();
        if (next.second.has_commit()) {
          last_commit_ = MonotonicNow();
          if (commits_++ == 0) first_commit_ = last_commit_;
        }
      }
      Answer(&ranks_[next.first], next.second);
    }
  }

  static void Answer(Rank* rank, const v1::Directive& directive) {
    if (const auto event = rank->rank.Answer(directive); event.has_value())
      rank->leaf->control->agents().OnEvent(rank->session, *event);
  }

  void BeginStep(int64_t step, Rank* rank) {
    for (const v1::AgentEvent& event :
         rank->rank.BeginStep(step, clock_.MonotonicNanos()))
      rank->leaf->control->agents().OnEvent(rank->session, event);
  }

  const std::string root_;
  const absl::Duration step_;
  const SystemClock clock_;
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  const Logger logger_{2, Logger::Severity::kWarning, &clock_};
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::RootService::Stub> finder_;
  const std::unique_ptr<v1::ControlService::Stub> control_;
  Counts events_, directives_;
  std::atomic<uint64_t> reports_{0};
  absl::Mutex mutex_;
  std::deque<std::pair<size_t, v1::Directive>> taken_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t commits_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime began_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime first_commit_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime last_commit_ ABSL_GUARDED_BY(mutex_);
  // Neither moves once it is made.
  std::vector<Leaf> leaves_;
  std::vector<Rank> ranks_;
  MonotonicEvent stop_;
  std::vector<std::thread> threads_, answering_;
};

template <typename Message>
std::string Kinds(const std::array<uint64_t, kKinds>& before,
                  const std::array<uint64_t, kKinds>& after) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < kKinds; ++i) {
    if (after[i] == before[i]) continue;
    const auto* const field =
        Message::descriptor()->FindFieldByNumber(static_cast<int>(i));
    parts.push_back(absl::StrFormat("\"%s\": %d",
                                    field == nullptr ? "gone" : field->name(),
                                    after[i] - before[i]));
  }
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

int Main(int argc, char** argv) {
  int pid = 0, ranks = 0, leaves = 0, step_ms = 0, switches = 0;
  if (argc != 8 || !absl::SimpleAtoi(argv[2], &pid) ||
      !absl::SimpleAtoi(argv[3], &ranks) ||
      !absl::SimpleAtoi(argv[4], &leaves) ||
      !absl::SimpleAtoi(argv[5], &step_ms) ||
      !absl::SimpleAtoi(argv[6], &switches) || ranks < 1 || leaves < 1 ||
      step_ms < 1 || switches < 1) {
    std::fprintf(stderr,
                 "usage: bench_control HOST:PORT PID RANKS LEAVES STEP_MS "
                 "SWITCHES DIRECTORY\n");
    return 2;
  }
  const auto since = [](MonotonicTime began) {
    return absl::ToDoubleSeconds(absl::FromChrono(MonotonicNow() - began));
  };
  Bench bench(argv[1], ranks, leaves, step_ms);
  bench.StartLeaves(argv[7]);
  const double cpu_before = CpuSeconds(pid);
  MonotonicTime began = MonotonicNow();
  bench.Connect();
  const double connect = since(began);
  bench.AwaitStatus(/*stepping=*/false);
  const double connect_cpu = CpuSeconds(pid) - cpu_before;
  bench.BeginSteps();
  bench.AwaitStatus(/*stepping=*/true);

  // What goes on while nothing is switched.
  double cpu = CpuSeconds(pid);
  auto events = bench.events();
  uint64_t reports = bench.reports();
  began = MonotonicNow();
  bench.WaitIdle();
  const double quiet = since(began);
  const double quiet_busy = (CpuSeconds(pid) - cpu) / quiet;
  const double quiet_events =
      static_cast<double>(bench.events()[v1::AgentEvent::kProgress] -
                          events[v1::AgentEvent::kProgress]) /
      quiet;
  const double quiet_reports =
      static_cast<double>(bench.reports() - reports) / quiet;

  std::vector<std::string> lines;
  for (int i = 0; i < switches; ++i) {
    events = bench.events();
    const auto directives = bench.directives();
    cpu = CpuSeconds(pid);
    const Bench::Switched one = bench.Switch(i % 2 == 0);
    lines.push_back(absl::StrFormat(
        "{\"decided\": %.4f, \"told\": %.4f, \"done\": %.4f, \"attempts\": "
        "%d, \"root_cpu\": %.2f, \"events\": %s, \"directives\": %s}",
        one.decided, one.told, one.done, one.attempts, CpuSeconds(pid) - cpu,
        Kinds<v1::AgentEvent>(events, bench.events()),
        Kinds<v1::Directive>(directives, bench.directives())));
  }
  began = MonotonicNow();
  const size_t status_bytes = bench.Status().ByteSizeLong();
  const double status = since(began);
  const std::string line = absl::StrFormat(
      "{\"ranks\": %d, \"leaves\": %d, \"step_ms\": %d, \"connect\": %.3f, "
      "\"connect_root_cpu\": %.2f, \"quiet_root_busy\": %.4f, "
      "\"quiet_progress_a_second\": %.1f, \"quiet_reports_a_second\": %.1f, "
      "\"status\": %.4f, \"status_bytes\": %d, \"root_mib\": %.1f, "
      "\"root_most_mib\": %.1f, \"switches\": [%s]}\n",
      ranks, leaves, step_ms, connect, connect_cpu, quiet_busy, quiet_events,
      quiet_reports, status, status_bytes, MemoryMib(pid, "VmRSS"),
      MemoryMib(pid, "VmHWM"), absl::StrJoin(lines, ", "));
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Main(argc, argv); }
