// SPDX-License-Identifier: Apache-2.0
// explain, events, triggers, watch, top.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/app.h"
#include "cli/client/choose_run.h"
#include "cli/client/dump_input.h"
#include "cli/client/fetch_events.h"
#include "cli/client/known_runs.h"
#include "cli/client/request_tokens.h"
#include "cli/exit_codes.h"
#include "cli/flags/numbers.h"
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

// The flights that follow a trigger of a run share one line: until the dump of
// the trigger ends, each rank writes each step. A switch or a connection
// between two of them comes at any time and does not divide them.
struct FlightsOfRun {
  size_t line = 0;
  uint64_t more = 0;
  int64_t last = 0;
  std::set<uint64_t> processes;
};

std::string MoreText(const FlightsOfRun& flights) {
  if (flights.more == 0) return "";
  std::string text = absl::StrCat("; ", Counted(flights.more, "more flight"),
                                  " up to step ", flights.last);
  if (flights.processes.size() > 1)
    absl::StrAppend(&text, ", of ", flights.processes.size(), " processes");
  return text;
}

std::vector<std::string> EventLines(
    const google::protobuf::RepeatedPtrField<v1::Event>& events) {
  std::vector<std::string> lines;
  std::map<std::string, FlightsOfRun> open;
  const auto close = [&](const std::string& run) {
    const auto flights = open.extract(run);
    if (!flights.empty())
      lines[flights.mapped().line] += MoreText(flights.mapped());
  };
  for (const v1::Event& event : events) {
    if (event.kind() == v1::Event::KIND_TRIGGER_FIRED) close(event.run());
    if (event.kind() != v1::Event::KIND_FLIGHT_SHIPPED) {
      lines.push_back(EventLine(event));
      continue;
    }
    const auto [at, begins] = open.try_emplace(event.run());
    FlightsOfRun& flights = at->second;
    flights.processes.insert(event.identity().incarnation());
    flights.last = std::max(flights.last, event.step());
    if (begins) {
      flights.line = lines.size();
      lines.push_back(EventLine(event));
    } else {
      ++flights.more;
    }
  }
  for (const auto& [run, flights] : open)
    lines[flights.line] += MoreText(flights);
  return lines;
}

void PrintEvents(const google::protobuf::RepeatedPtrField<v1::Event>& events) {
  for (const std::string& line : EventLines(events))
    Print(stdout, "%s\n", line);
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
  RP_ASSIGN_OR_RETURN(const v1::ExplainResponse response,
                      client.Ask(&ControlStub::Explain, request));
  // No such rank.
  if (flags.rank >= 0 && response.ranks().empty()) *exit_code = kNotFound;
  if (PrintIf(globals.json, response)) return absl::OkStatus();
  for (const v1::Explanation& stage : response.stages()) {
    Print(stdout, "%s %s: %s\n", stage.passes() ? "yes" : "NO ",
          stage.stage().c_str(), stage.reason().c_str());
  }
  for (const v1::RankExplanation& rank : response.ranks()) PrintRank(rank);
  return absl::OkStatus();
}

struct EventsFlags {
  std::string run;
  uint64_t after = 0;
  uint32_t limit = 100;
};

absl::Status Events(const Globals& globals, const EventsFlags& flags) {
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse response,
                      FetchEvents(client, flags.run, flags.after, flags.limit));
  if (response.events().empty())
    RP_RETURN_IF_ERROR(SayNoSuchRun(client, globals, flags.run));
  if (PrintIf(globals.json, response)) return absl::OkStatus();
  PrintEvents(response.events());
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
  const absl::Status there = CheckRunIsThere(client, run, "; waiting for it");
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
      }
    }
    if (!globals.json) PrintEvents(events.events());
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
  // The newest lines, of so many events.
  static constexpr size_t kLines = 8;
  static constexpr uint32_t kEvents = 200;

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
    const std::vector<std::string> lines = EventLines(events.events());
    for (size_t i = lines.size() - std::min(lines.size(), kLines);
         i < lines.size(); ++i)
      absl::StrAppend(&text, VisibleText(lines[i]), "\n");
    Print(stdout, "%s", Lines{text});
    std::fflush(stdout);
  }

  const Client client_;
  const WatchFlags flags_;
  const bool terminal_;
  bool drawn_ = false;
  std::map<uint64_t, uint64_t> received_;
};

struct TriggersFlags {
  std::string run, file, reference;
  bool create = false;
};

// Reads the tokens of rules that name only a request from `dump`.
absl::Status AddReference(const Globals& globals, const std::string& dump,
                          v1::TriggerSpec* spec) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  DumpInput::Wanted wanted;
  wanted.payloads = false;
  RP_ASSIGN_OR_RETURN(const DumpInput input,
                      DumpInput::Open(files.get(), globals, dump, wanted));
  RP_ASSIGN_OR_RETURN(const DumpLayout layout, input.Find());
  for (v1::TriggerRule& rule : *spec->mutable_rules()) {
    if (!rule.has_token_reference()) continue;
    RP_RETURN_IF_ERROR(ReadReferenceTokens(files.get(), layout,
                                           rule.mutable_token_reference()));
  }
  return absl::OkStatus();
}

absl::Status TriggersSet(const Globals& globals, const TriggersFlags& flags) {
  RP_ASSIGN_OR_RETURN(const std::string json, ReadSmallFile(flags.file));
  absl::Status reference;
  auto spec = ParseTriggerSpec(json, [&](v1::TriggerSpec* parsed) {
    if (!flags.reference.empty())
      reference = AddReference(globals, flags.reference, parsed);
    return reference;
  });
  RP_RETURN_IF_ERROR(reference);
  if (!spec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file, ": ", spec.status().message()));
  }
  const Client client(globals);
  v1::SetTriggersRequest request;
  *request.mutable_spec() = *std::move(spec);
  RP_ASSIGN_OR_RETURN(*request.mutable_run(),
                      ChooseRun(client, flags.run,
                                flags.create ? NewRun::kTake : NewRun::kOffer));
  client.Introduce(request.ByteSizeLong());
  RP_ASSIGN_OR_RETURN(const v1::SetTriggersResponse response,
                      client.Act(&ControlStub::SetTriggers, request));
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
  // `triggers set --create` may have prepared a run that has no ranks yet.
  RP_ASSIGN_OR_RETURN(*request.mutable_run(),
                      ChooseRun(client, named, NewRun::kTake));
  const auto spec = client.Ask(&ControlStub::GetTriggers, request);
  if (absl::IsNotFound(spec.status()))
    RP_RETURN_IF_ERROR(CheckRunIsThere(client, request.run(), ""));
  RP_RETURN_IF_ERROR(spec.status());
  PrintJson(globals.json ? ToJson(*spec) : TriggerSpecToJson(*spec));
  return absl::OkStatus();
}

void AddRun(CLI::App* verb, std::string* run) {
  verb->add_option("--run", *run,
                   "the run; may be left out when one is connected");
}

void AddTriggers(const Registry& to) {
  const Registry triggers = to.AddGroup(
      "triggers",
      "read or replace flight recorder, triggers and budgets of a run");
  const auto [set, flags] =
      triggers.Add<TriggersFlags>("set", "replace them", TriggersSet);
  AddRun(set, &flags->run);
  set->add_option("FILE", flags->file, "JSON; docs/formats.md, \"Triggers\"")
      ->required();
  set->add_option("--reference", flags->reference,
                  "a dump or run:NAME of a sound server: the tokens of rules "
                  "token_reference that name only a request");
  set->add_flag(
      "--create", flags->create,
      "the run may not exist yet: its ranks get this when they connect");
  const auto [get, run] =
      triggers.Add<std::string>("get", "print them", TriggersGet);
  AddRun(get, run);
}

void AddWatchFlags(CLI::App* verb, WatchFlags* flags) {
  verb->add_option("--run", flags->run, "only this run");
  verb->add_option("--interval", flags->interval_seconds, "seconds (1)")
      ->check(NumberWithin(0.1, 3600.0));
  verb->add_option("--rounds", flags->rounds,
                   "number of rounds; 0: until interrupted")
      ->check(IntegerWithin(0, std::numeric_limits<int>::max()));
}

}  // namespace

void RegisterMonitorCommands(const Registry& to) {
  const auto [explain, question] = to.Add<ExplainFlags>(
      "explain", "say why calls are, will be or would be recorded or not",
      Explain);
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

  const auto [events, which] = to.Add<EventsFlags>(
      "events", "list past events: triggers, budgets, connections, errors",
      Events);
  events->add_option("--run", which->run, "only this run");
  events
      ->add_option("--after", which->after,
                   "only events with a greater id, which --json shows")
      ->check(IntegerWithin(0, std::numeric_limits<int64_t>::max()));
  events->add_option("--limit", which->limit, "number of newest events (100)")
      ->check(IntegerWithin(1, 10000));

  const auto [watch, watched] = to.Add<WatchFlags>(
      "watch", "print events as they arrive; --json for programs", Watch);
  AddWatchFlags(watch, watched);
  const auto [top, shown] = to.Add<WatchFlags>(
      "top", "show ranks, steps, rates, lag and events, live",
      [](const Globals& globals, const WatchFlags& flags) {
        if (globals.json) {
          return absl::InvalidArgumentError(
              "top is for people; programs read rankprobe watch --json");
        }
        return Top(globals, flags).Run();
      });
  AddWatchFlags(top, shown);

  AddTriggers(to);
}

}  // namespace rankprobe
