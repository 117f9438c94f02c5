// SPDX-License-Identifier: Apache-2.0
// explain, events, triggers, flight, watch, top.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/app.h"
#include "cli/client/choose_run.h"
#include "cli/client/known_runs.h"
#include "cli/exit_codes.h"
#include "cli/flags/numbers.h"
#include "cli/flags/ranges.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/config/plan.h"
#include "common/config/trigger_spec.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

std::string Who(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat("rank ", identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

const char* KindText(v1::Event::Kind kind) {
  switch (kind) {
    case v1::Event::KIND_TRIGGER_FIRED:
      return "trigger";
    case v1::Event::KIND_DEGRADED:
      return "budget";
    case v1::Event::KIND_CONNECTED:
      return "connected";
    case v1::Event::KIND_DISCONNECTED:
      return "disconnected";
    case v1::Event::KIND_SWITCHED:
      return "switched";
    case v1::Event::KIND_FLIGHT_SHIPPED:
      return "flight";
    case v1::Event::KIND_DIFFERENCE:
      return "difference";
    case v1::Event::KIND_ERROR:
      return "error";
    case v1::Event::KIND_DISK:
      return "disk";
    default:
      return "event";
  }
}

// Returns "12:03:04 rank 1 step 7 trigger nan: Module.x output 0: Max NaN ->
// ..."
std::string EventLine(const v1::Event& event) {
  std::string line =
      absl::FormatTime("%H:%M:%S", absl::FromUnixNanos(event.time_unix_ns()),
                       absl::LocalTimeZone());
  absl::StrAppend(&line, " ", event.run());
  if (event.has_identity()) absl::StrAppend(&line, " ", Who(event.identity()));
  if (event.step() >= 0) absl::StrAppend(&line, " step ", event.step());
  absl::StrAppend(&line, " ", KindText(event.kind()));
  if (!event.rule().empty()) absl::StrAppend(&line, " ", event.rule());
  std::string what = event.entry();
  if (!event.detail().empty())
    absl::StrAppend(&what, what.empty() ? "" : " ", event.detail());
  if (!what.empty()) absl::StrAppend(&line, ": ", what);
  if (!event.outcome().empty()) absl::StrAppend(&line, " -> ", event.outcome());
  return line;
}

struct ExplainFlags {
  std::string run, call, config;
  int64_t rank = -1, step = -1;
  uint32_t max_calls = 0;
};

void PrintRank(const v1::RankExplanation& rank) {
  Print(stdout, "%s (pid %d on %s)\n", Who(rank.identity()).c_str(),
        rank.identity().pid(), rank.identity().host().c_str());
  for (const v1::Explanation& stage : rank.stages()) {
    Print(stdout, "  %s %-10s %s\n", stage.passes() ? "yes" : "NO ",
          stage.stage().c_str(), stage.reason().c_str());
  }
  uint64_t captured = 0;
  for (const v1::CallExplanation& call : rank.calls())
    captured += call.captured() ? 1 : 0;
  if (rank.calls().empty()) return;
  Print(stdout, "  calls: %d shown, %d of them pass the filters\n",
        rank.calls_size(), captured);
  for (const v1::CallExplanation& call : rank.calls()) {
    Print(stdout, "    %s %s%s%s\n", call.captured() ? "yes" : "NO ",
          call.entry().c_str(), call.with_payload() ? " (with tensors)" : "",
          call.captured()
              ? ""
              : absl::StrCat(": ", call.stage(), ": ", call.reason()).c_str());
  }
}

absl::Status Explain(const Globals& globals, const ExplainFlags& flags,
                     int* exit_code) {
  const Client client(globals);
  v1::ExplainRequest request;
  if (!flags.config.empty()) {
    RP_ASSIGN_OR_RETURN(*request.mutable_config_json(),
                        ReadConfigFile(flags.config));
  }
  RP_ASSIGN_OR_RETURN(*request.mutable_run(), ChooseRun(client, flags.run));
  if (flags.rank >= 0) request.set_rank(flags.rank);
  if (flags.step >= 0) request.set_step(flags.step);
  request.set_call(flags.call);
  request.set_max_calls(flags.max_calls);
  client.Introduce(request.config_json().size());
  v1::ExplainResponse response;
  RP_RETURN_IF_ERROR(client.Ask([&](grpc::ClientContext* context) {
    return client.control->Explain(context, request, &response);
  }));
  // There is no such rank.
  if (flags.rank >= 0 && response.ranks().empty()) *exit_code = kNotFound;
  if (globals.json) {
    PrintJson(ToJson(response));
    return absl::OkStatus();
  }
  for (const v1::Explanation& stage : response.stages()) {
    Print(stdout, "%s %s: %s\n", stage.passes() ? "yes" : "NO ",
          stage.stage().c_str(), stage.reason().c_str());
  }
  for (const v1::RankExplanation& rank : response.ranks()) PrintRank(rank);
  return absl::OkStatus();
}

absl::StatusOr<v1::ListEventsResponse> FetchEvents(const Client& client,
                                                   const std::string& run,
                                                   uint64_t after,
                                                   uint32_t limit) {
  v1::ListEventsRequest request;
  request.set_run(run);
  request.set_after_id(after);
  request.set_limit(limit);
  v1::ListEventsResponse response;
  RP_RETURN_IF_ERROR(client.Ask([&](grpc::ClientContext* context) {
    return client.control->ListEvents(context, request, &response);
  }));
  return response;
}

absl::Status Events(const Globals& globals, const std::string& run,
                    uint64_t after, uint32_t limit) {
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse response,
                      FetchEvents(client, run, after, limit));
  if (response.events().empty())
    RP_RETURN_IF_ERROR(SayNoSuchRun(client, globals, run));
  if (globals.json) {
    PrintJson(ToJson(response));
    return absl::OkStatus();
  }
  for (const v1::Event& event : response.events())
    Print(stdout, "%s\n", EventLine(event).c_str());
  return absl::OkStatus();
}

struct WatchFlags {
  std::string run;
  double interval_seconds = 1;
  // 0 means until interrupted.
  int64_t rounds = 0;
};

void Sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// A user may start to watch before the job starts.
void SayIfToCome(const Client& client, const std::string& run) {
  if (run.empty()) return;
  const absl::Status there =
      CheckRunIsThere(client, run, "; waiting for that step");
  if (!there.ok()) Print(stderr, "rankprobe: %s\n", there.message());
}

// Prints one JSON object on each line: {"event": ..} as events arrive,
// {"agents": [..]} at each interval.
absl::Status Watch(const Globals& globals, const WatchFlags& flags) {
  const Client client(globals);
  SayIfToCome(client, flags.run);
  uint64_t after = 0;
  for (int64_t round = 0; flags.rounds == 0 || round < flags.rounds; ++round) {
    if (round > 0) Sleep(flags.interval_seconds);
    RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse events,
                        FetchEvents(client, flags.run, after, 1000));
    for (const v1::Event& event : events.events()) {
      after = std::max(after, event.id());
      if (globals.json) {
        v1::WatchedEvent line;
        *line.mutable_event() = event;
        PrintJson(ToJson(line));
      } else {
        Print(stdout, "%s\n", EventLine(event).c_str());
      }
    }
    if (globals.json) {
      RP_ASSIGN_OR_RETURN(const v1::ListAgentsResponse agents,
                          client.ListAgents(flags.run));
      PrintJson(ToJson(agents));
    }
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

// Ranks x steps, rates, lag, events; redrawn in place on a terminal.
class Top {
 public:
  Top(const Globals& globals, const WatchFlags& flags)
      : client_(globals), flags_(flags), terminal_(::isatty(STDOUT_FILENO)) {}

  absl::Status Run() {
    SayIfToCome(client_, flags_.run);
    for (int64_t round = 0; flags_.rounds == 0 || round < flags_.rounds;
         ++round) {
      if (round > 0) Sleep(flags_.interval_seconds);
      RP_ASSIGN_OR_RETURN(const v1::ListAgentsResponse agents,
                          client_.ListAgents(flags_.run));
      RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse events,
                          FetchEvents(client_, flags_.run, 0, kEvents));
      Draw(agents, events);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint32_t kEvents = 8;

  void Draw(const v1::ListAgentsResponse& agents,
            const v1::ListEventsResponse& events) {
    Table table({"RUN", "RANK", "HOST", "STEP", "LAG", "MS/STEP", "DUMP",
                 "RATE", "BYTES", "PENDING", "LOST", "SILENT"});
    size_t connected = 0, dumping = 0;
    uint64_t rate = 0;
    for (const v1::AgentInfo& agent : agents.agents()) {
      uint64_t& before = received_[agent.identity().incarnation()];
      const auto mine = static_cast<uint64_t>(
          static_cast<double>(agent.received_bytes() -
                              std::min(before, agent.received_bytes())) /
          flags_.interval_seconds);
      const uint64_t shown = drawn_ ? mine : 0;
      before = agent.received_bytes();
      connected += agent.connected() ? 1 : 0;
      dumping += agent.dumping() ? 1 : 0;
      rate += shown;
      table.Add({agent.identity().run(),
                 agent.identity().has_rank()
                     ? absl::StrCat(agent.identity().rank())
                     : absl::StrCat("proc", agent.identity().pid()),
                 agent.identity().host(), absl::StrCat(agent.step()),
                 absl::StrCat(agent.lag_steps()),
                 agent.step_ns() > 0
                     ? absl::StrFormat(
                           "%.1f", static_cast<double>(agent.step_ns()) / 1e6)
                     : "-",
                 !agent.connected() ? "gone"
                 : agent.dumping()  ? "on"
                                    : "off",
                 absl::StrCat(HumanBytes(shown), "/s"),
                 HumanBytes(agent.received_bytes()),
                 HumanBytes(agent.pending_bytes()),
                 absl::StrCat(agent.lost_records() + agent.lost_payloads()),
                 absl::StrFormat(
                     "%.1f s", static_cast<double>(agent.silent_ms()) / 1000)});
    }
    drawn_ = true;
    std::string text;
    // Elsewhere pages are printed one after another.
    if (terminal_) ClearTerminal();
    absl::StrAppend(&text, Counted(connected, "rank"), " connected, ", dumping,
                    " dumping, ", HumanBytes(rate), "/s\n\n", table.ToText());
    if (!events.events().empty()) absl::StrAppend(&text, "\nevents\n");
    for (const v1::Event& event : events.events())
      absl::StrAppend(&text, VisibleText(EventLine(event)), "\n");
    Print(stdout, "%s", Lines{text});
    std::fflush(stdout);
  }

  const Client client_;
  const WatchFlags flags_;
  const bool terminal_;
  bool drawn_ = false;
  std::map<uint64_t, uint64_t> received_;
};

absl::Status TriggersSet(const Globals& globals, const std::string& named,
                         const std::string& path, bool create) {
  RP_ASSIGN_OR_RETURN(const std::string json, ReadSmallFile(path));
  auto spec = ParseTriggerSpec(json);
  if (!spec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", spec.status().message()));
  }
  const Client client(globals);
  v1::SetTriggersRequest request;
  *request.mutable_spec() = *std::move(spec);
  RP_ASSIGN_OR_RETURN(
      *request.mutable_run(),
      ChooseRun(client, named, create ? NewRun::kTake : NewRun::kOffer));
  client.Introduce(request.ByteSizeLong());
  v1::SetTriggersResponse response;
  RP_RETURN_IF_ERROR(client.Act([&](grpc::ClientContext* context) {
    return client.control->SetTriggers(context, request, &response);
  }));
  if (globals.json) {
    PrintJson(ToJson(response));
  } else {
    Print(stdout, "sent to %s; ranks that join get it too\n",
          Counted(response.ranks(), "rank"));
  }
  return absl::OkStatus();
}

absl::Status TriggersGet(const Globals& globals, const std::string& named) {
  const Client client(globals);
  v1::GetTriggersRequest request;
  RP_ASSIGN_OR_RETURN(*request.mutable_run(), ChooseRun(client, named));
  v1::TriggerSpec spec;
  RP_RETURN_IF_ERROR(client.Ask([&](grpc::ClientContext* context) {
    return client.control->GetTriggers(context, request, &spec);
  }));
  PrintJson(globals.json ? ToJson(spec) : TriggerSpecToJson(spec));
  return absl::OkStatus();
}

absl::Status Flight(const Globals& globals, const std::string& named,
                    const std::string& ranks) {
  const Client client(globals);
  v1::ShipFlightRequest request;
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> chosen,
                      ParseRanges("--ranks", ranks));
  for (const int64_t rank : chosen) request.add_ranks(rank);
  RP_ASSIGN_OR_RETURN(*request.mutable_run(), ChooseRun(client, named));
  v1::ShipFlightResponse response;
  RP_RETURN_IF_ERROR(client.Act([&](grpc::ClientContext* context) {
    return client.control->ShipFlight(context, request, &response);
  }));
  if (globals.json) {
    PrintJson(ToJson(response));
  } else {
    Print(stdout, "asked %s to write the flight recorder\n",
          Counted(response.ranks(), "rank"));
  }
  return absl::OkStatus();
}

template <typename Flags>
void AddRun(CLI::App* verb, Flags* run) {
  verb->add_option("--run", *run,
                   "the run; may be left out when one is connected");
}

void AddTriggers(CLI::App* app, Globals* globals, ParsedCommand* command) {
  CLI::App* const triggers = app->add_subcommand(
      "triggers",
      "read or replace flight recorder, triggers and budgets of a run");
  triggers->require_subcommand(1);
  CLI::App* const set = triggers->add_subcommand("set", "replace them");
  CLI::App* const get = triggers->add_subcommand("get", "print them");
  auto run = std::make_shared<std::string>();
  auto file = std::make_shared<std::string>();
  for (CLI::App* const verb : {set, get}) {
    AddGlobals(verb, globals);
    AddRun(verb, run.get());
  }
  set->add_option("FILE", *file, "JSON; docs/formats.md, \"Triggers\"")
      ->required();
  auto create = std::make_shared<bool>(false);
  set->add_flag(
      "--create", *create,
      "the run may not exist yet: its ranks get this when they connect");
  set->callback([command, run, file, create] {
    command->run = [run, file, create](const Globals& g, int*) {
      return TriggersSet(g, *run, *file, *create);
    };
  });
  get->callback([command, run] {
    command->run = [run](const Globals& g, int*) {
      return TriggersGet(g, *run);
    };
  });
}

}  // namespace

void RegisterMonitorCommands(CLI::App* app, Globals* globals,
                             ParsedCommand* command) {
  CLI::App* const explain = app->add_subcommand(
      "explain", "say why calls are, will be or would be recorded or not");
  AddGlobals(explain, globals);
  auto question = std::make_shared<ExplainFlags>();
  AddRun(explain, &question->run);
  explain->add_option("--rank", question->rank, "only this rank")
      ->check(IntegerWithin(0, kLargestStep));
  explain
      ->add_option("--step", question->step,
                   "the step to explain; the next one if left out")
      ->check(IntegerWithin(0, kLargestStep));
  explain->add_option("--call", question->call,
                      "only calls with this in their name");
  explain->add_option("--config", question->config,
                      "a config.json to try instead of the run's");
  explain->add_option("--max-calls", question->max_calls,
                      "calls to show per rank (200)");
  explain->callback([command, question] {
    command->run = [question](const Globals& g, int* code) {
      return Explain(g, *question, code);
    };
  });

  CLI::App* const events = app->add_subcommand(
      "events", "list past events: triggers, budgets, connections, errors");
  AddGlobals(events, globals);
  auto run = std::make_shared<std::string>();
  auto limit = std::make_shared<uint32_t>(100);
  auto after = std::make_shared<uint64_t>(0);
  events->add_option("--run", *run, "only this run");
  events
      ->add_option("--after", *after,
                   "only events with a greater id, which --json shows")
      ->check(IntegerWithin(0, std::numeric_limits<int64_t>::max()));
  events->add_option("--limit", *limit, "number of newest events (100)")
      ->check(IntegerWithin(1, 10000));
  events->callback([command, run, after, limit] {
    command->run = [run, after, limit](const Globals& g, int*) {
      return Events(g, *run, *after, *limit);
    };
  });

  auto flags = std::make_shared<WatchFlags>();
  CLI::App* const watch = app->add_subcommand(
      "watch", "print events as they arrive; --json for programs");
  CLI::App* const top = app->add_subcommand(
      "top", "show ranks, steps, rates, lag and events, live");
  for (CLI::App* const verb : {watch, top}) {
    AddGlobals(verb, globals);
    verb->add_option("--run", flags->run, "only this run");
    verb->add_option("--interval", flags->interval_seconds, "seconds (1)")
        ->check(NumberWithin(0.1, 3600.0));
    verb->add_option("--rounds", flags->rounds,
                     "number of rounds; 0: until interrupted")
        ->check(IntegerWithin(0, std::numeric_limits<int>::max()));
  }
  watch->callback([command, flags] {
    command->run = [flags](const Globals& g, int*) { return Watch(g, *flags); };
  });
  top->callback([command, flags] {
    command->run = [flags](const Globals& g, int*) -> absl::Status {
      if (g.json) {
        return absl::InvalidArgumentError(
            "top is for people; programs read rankprobe watch --json");
      }
      return Top(g, *flags).Run();
    };
  });

  AddTriggers(app, globals, command);

  CLI::App* const flight = app->add_subcommand(
      "flight", "write the contents of the flight recorders to the archive");
  AddGlobals(flight, globals);
  auto flight_run = std::make_shared<std::string>();
  auto ranks = std::make_shared<std::string>();
  AddRun(flight, flight_run.get());
  flight->add_option("--ranks", *ranks, "like 0,2-3; all if left out")
      ->check(WhyNoRanges);
  flight->callback([command, flight_run, ranks] {
    command->run = [flight_run, ranks](const Globals& g, int*) {
      return Flight(g, *flight_run, *ranks);
    };
  });
}

}  // namespace rankprobe
