// SPDX-License-Identifier: Apache-2.0
// enable, disable, config get, config set.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <set>

#include "cli/app.h"
#include "cli/client/choose_run.h"
#include "cli/exit_codes.h"
#include "cli/flags/numbers.h"
#include "cli/flags/ranges.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/config/api_list.h"
#include "common/config/config_schema.h"
#include "common/config/plan.h"
#include "common/config/request_config.h"
#include "common/text/counted.h"
#include "common/text/ranges_text.h"
#include "common/text/shell_word.h"

namespace rankprobe {
namespace {

struct SwitchFlags {
  std::string run, ranks, config, api_list;
  std::optional<std::string> request;
  bool own_api_list = false, all_requests = false;
  int64_t at_step = -1, for_steps = 0;
  double wait_seconds = 10;
  bool no_wait = false, create = false;
  uint64_t epoch = 0;
};

absl::Status FillOptions(const SwitchFlags& flags, v1::SwitchOptions* options) {
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                      ParseRanges("--ranks", flags.ranks));
  for (const int64_t rank : ranks) options->add_ranks(rank);
  // Unset, not 0: the collector then chooses the earliest step.
  if (flags.at_step >= 0) options->set_at_step(flags.at_step);
  options->set_for_steps(flags.for_steps);
  options->set_no_wait(flags.no_wait);
  options->set_timeout_ms(static_cast<uint32_t>(flags.wait_seconds * 1000));
  return absl::OkStatus();
}

const char* StateText(v1::RankSwitch::State state) {
  switch (state) {
    case v1::RankSwitch::STATE_PREPARED:
      return "prepared, has not reached the step";
    case v1::RankSwitch::STATE_APPLIED:
      return "applied";
    case v1::RankSwitch::STATE_REFUSED:
      return "refused";
    case v1::RankSwitch::STATE_SILENT:
      return "silent";
    case v1::RankSwitch::STATE_LOST:
      return "lost";
    default:
      return "unknown";
  }
}

// Returns the ranks that were named and are not connected: "5, 7".
std::string AbsentRanks(const v1::SwitchOptions& options,
                        const v1::SwitchResult& result) {
  std::set<int64_t> absent(options.ranks().begin(), options.ranks().end());
  for (const v1::RankSwitch& rank : result.ranks()) {
    if (rank.has_rank()) absent.erase(rank.rank());
  }
  return RangesText({absent.begin(), absent.end()});
}

// `prefix` is printed before the summary if a rank is connected.
void Report(const Globals& globals, const v1::SwitchOptions& options,
            const std::string& prefix, const v1::SwitchResult& result,
            int* exit_code) {
  const bool no_wait = options.no_wait();
  // A rank that switched at another step did not follow: all ranks must switch
  // at one step.
  const auto followed = [&](const v1::RankSwitch& rank) {
    return (rank.state() == v1::RankSwitch::STATE_APPLIED &&
            rank.applied_step() == result.effective_at_step()) ||
           ((no_wait || result.waits()) &&
            rank.state() == v1::RankSwitch::STATE_PREPARED);
  };
  for (const v1::RankSwitch& rank : result.ranks()) {
    if (!followed(rank)) *exit_code = kPartial;
  }
  const std::string absent =
      result.ranks().empty() ? "" : AbsentRanks(options, result);
  if (!absent.empty()) *exit_code = kPartial;
  if (PrintIf(globals.json, result)) return;
  Print(stdout, "%s%s\n", result.ranks().empty() ? "" : prefix,
        result.summary());
  if (!absent.empty()) Print(stdout, "  not connected: rank %s\n", absent);
  // With thousands of ranks, only those that need attention are named; the
  // summary counts the others.
  for (const v1::RankSwitch& rank : result.ranks()) {
    if (followed(rank)) continue;
    const std::string who = rank.has_rank() ? absl::StrCat("rank ", rank.rank())
                                            : absl::StrCat("proc", rank.pid());
    Print(stdout, "  %s (pid %d on %s): %s%s%s\n", who.c_str(), rank.pid(),
          rank.host().c_str(), StateText(rank.state()),
          rank.reason().empty() ? "" : ": ", rank.reason().c_str());
  }
}

// Reports what `enable` records if no configuration was given: it may be an
// older --config of another user.
void SayConfigKept(const Client& client, const std::string& run,
                   bool is_for_good) {
  const std::optional<Plan> known = PlanOfRun(client, run);
  if (!known.has_value()) return;
  const Plan& plan = *known;
  const auto set = [](const char* what, const IntSet& values) {
    return values.all() ? "" : absl::StrCat(", ", what, " ", values.Text());
  };
  Print(stdout,
        "  with the configuration that the run has: task %s, level %s%s%s%s; "
        "`rankprobe config get` prints it, --config FILE replaces it%s\n",
        std::string(TaskName(plan.task)), std::string(LevelName(plan.level)),
        set("ranks", plan.ranks), set("steps", plan.steps),
        plan.list.empty() && plan.scope.empty() ? "" : ", some calls only",
        is_for_good && plan.steps.all()
            ? "; recording continues until `rankprobe disable`"
            : "");
}

// Returns NOT_FOUND if none of the listed ranks is connected: the list has a
// mistake or belongs to another job. This is checked before anything is
// switched. `config_json` is empty if none was given. With --create the ranks
// of a configuration may connect later.
absl::Status CheckRanksAreConnected(const Client& client,
                                    const SwitchFlags& flags,
                                    const std::string& run,
                                    const std::string& config_json) {
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> named,
                      ParseRanges("--ranks", flags.ranks));
  const auto config = ParseConfig(config_json, {});
  const IntSet wanted =
      config.ok() && !flags.create ? config->plan.ranks : IntSet();
  if (named.empty() && wanted.all()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const v1::ListAgentsResponse agents,
                      client.ListAgents(run));
  bool is_any_connected = false;
  std::set<int64_t> connected, chosen;
  for (const v1::AgentInfo& agent : agents.agents()) {
    if (!agent.connected()) continue;
    is_any_connected = true;
    if (!agent.identity().has_rank()) continue;
    const int64_t rank = agent.identity().rank();
    connected.insert(rank);
    if (named.empty() ||
        std::find(named.begin(), named.end(), rank) != named.end())
      chosen.insert(rank);
  }
  if (!is_any_connected ||
      std::any_of(chosen.begin(), chosen.end(),
                  [&](int64_t rank) { return wanted.Contains(rank); }))
    return absl::OkStatus();
  const bool is_named_absent = chosen.empty() && !named.empty();
  return absl::NotFoundError(absl::StrCat(
      is_named_absent
          ? absl::StrCat("--ranks ", flags.ranks)
          : absl::StrCat(flags.config, " selects ranks ", wanted.Text()),
      ": none of them is connected, nothing was changed; ",
      connected.empty()
          ? "the connected processes have no rank"
          : absl::StrCat("connected ranks of run ", run, ": ",
                         RangesText({connected.begin(), connected.end()})),
      is_named_absent ? ""
                      : "; \"rank\": [] selects every rank; --create sets it "
                        "for ranks that connect later"));
}

// With --create, if no process of the run is connected, moves the ranks into
// `config` (empty if none was given): the configuration of the first process
// that connects would replace a plan for some ranks.
absl::Status LeaveRanksToConfig(const Client& client, const SwitchFlags& flags,
                                const std::string& run, std::string* config,
                                v1::SwitchOptions* options) {
  if (!flags.create || options->ranks().empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const v1::ListAgentsResponse agents,
                      client.ListAgents(run));
  if (std::any_of(agents.agents().begin(), agents.agents().end(),
                  [](const v1::AgentInfo& agent) { return agent.connected(); }))
    return absl::OkStatus();
  if (config->empty()) {
    v1::GetConfigRequest request;
    request.set_run(run);
    const auto known = client.Ask(&ControlStub::GetConfig, request);
    // That of `rankprobe run`.
    *config = known.ok() && !known->config_json().empty()
                  ? known->config_json()
                  : R"({"task": "statistics", "level": "mix"})";
  }
  *config =
      WithRanks(*config, {options->ranks().begin(), options->ranks().end()});
  options->clear_ranks();
  return absl::OkStatus();
}

// Steps count from the start of a job, so a list that was written for an
// earlier start may be over in a job that was continued.
void SayStepsThatAreOver(const SwitchFlags& flags,
                         const std::string& config_json,
                         const v1::SwitchResult& result, int* exit_code) {
  const auto config = ParseConfig(config_json, {});
  if (!config.ok()) return;
  const std::optional<int64_t> last = config->plan.steps.Max();
  if (!last.has_value() || *last >= result.effective_at_step()) return;
  if (!flags.create) *exit_code = kPartial;
  Print(stderr,
        "rankprobe: nothing will be recorded: %s selects steps %s, and this "
        "takes effect at step %d; \"step\": [] selects every step\n",
        flags.config, config->plan.steps.Text(), result.effective_at_step());
}

// Returns the reason for a run without a connected process.
const char* WhyNobody(const Client& client, const std::string& run) {
  const auto agents = client.ListAgents(run);
  return agents.ok() && !agents->agents().empty()
             ? "its processes have ended, or lost their connection"
             : "this collector knows of none";
}

absl::Status SetEnable(const Globals& globals, const SwitchFlags& flags,
                       bool enable, int* exit_code) {
  const Client client(globals);
  v1::SetDumpEnableRequest request;
  request.set_enable(enable);
  request.set_expected_epoch(flags.epoch);
  RP_RETURN_IF_ERROR(FillOptions(flags, request.mutable_options()));
  if (flags.request.has_value()) request.set_request_id(*flags.request);
  if (flags.all_requests) request.set_request_id("");
  std::string config;
  if (!flags.config.empty()) {
    RP_ASSIGN_OR_RETURN(config, ReadConfigFile(flags.config));
  }
  RP_ASSIGN_OR_RETURN(*request.mutable_run(),
                      ChooseRun(client, flags.run,
                                flags.create ? NewRun::kTake : NewRun::kOffer));
  if (enable) {
    RP_RETURN_IF_ERROR(LeaveRanksToConfig(client, flags, request.run(), &config,
                                          request.mutable_options()));
  }
  if (!config.empty())
    request.set_config_json(ConfigForRun(client, request.run(), config));
  RP_RETURN_IF_ERROR(CheckRanksAreConnected(client, flags, request.run(),
                                            request.config_json()));
  client.Introduce(request.config_json().size());
  RP_ASSIGN_OR_RETURN(
      const v1::SwitchResult result,
      client.Act(&ControlStub::SetDumpEnable, request, flags.wait_seconds));
  Report(globals, request.options(),
         enable ? "recording on: " : "recording off: ", result, exit_code);
  // A script that continues after `enable` relies on the recording.
  if (enable && !flags.create && result.ranks().empty()) {
    *exit_code = kPartial;
    Print(stderr,
          "rankprobe: nothing is recorded now: no rank of run %s is connected "
          "(%s). The setting applies to ranks of this run that connect later; "
          "`rankprobe disable --run %s` takes it back\n",
          request.run(), WhyNobody(client, request.run()),
          ShellWord(request.run()));
  }
  if (!flags.config.empty())
    SayStepsThatAreOver(flags, request.config_json(), result, exit_code);
  if (enable && flags.config.empty() && !globals.json &&
      !result.ranks().empty())
    SayConfigKept(client, request.run(), flags.for_steps == 0);
  return absl::OkStatus();
}

absl::Status ConfigSet(const Globals& globals, const SwitchFlags& flags,
                       int* exit_code) {
  const Client client(globals);
  v1::SetConfigRequest request;
  request.set_expected_epoch(flags.epoch);
  RP_RETURN_IF_ERROR(FillOptions(flags, request.mutable_options()));
  RP_ASSIGN_OR_RETURN(std::string config, ReadConfigFile(flags.config));
  if (!flags.api_list.empty()) {
    RP_ASSIGN_OR_RETURN(*request.mutable_api_list(),
                        ReadSmallFile(flags.api_list));
    // An empty list would select the agents' default.
    const absl::Status status = ParseApiList(request.api_list()).status();
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flags.api_list, ": ", status.message()));
    }
  }
  if (flags.own_api_list) request.set_api_list("");
  RP_ASSIGN_OR_RETURN(*request.mutable_run(),
                      ChooseRun(client, flags.run,
                                flags.create ? NewRun::kTake : NewRun::kOffer));
  RP_RETURN_IF_ERROR(LeaveRanksToConfig(client, flags, request.run(), &config,
                                        request.mutable_options()));
  request.set_config_json(ConfigForRun(client, request.run(), config));
  RP_RETURN_IF_ERROR(CheckRanksAreConnected(client, flags, request.run(),
                                            request.config_json()));
  client.Introduce(request.ByteSizeLong());
  RP_ASSIGN_OR_RETURN(
      const v1::SwitchResult result,
      client.Act(&ControlStub::SetConfig, request, flags.wait_seconds));
  Report(globals, request.options(), "", result, exit_code);
  SayStepsThatAreOver(flags, request.config_json(), result, exit_code);
  return absl::OkStatus();
}

// Returns who made the plan, as text for people; empty if unknown.
std::string SourceText(const v1::GetConfigResponse& response) {
  const char* source = "";
  switch (response.source()) {
    case v1::PlanSpec::SOURCE_OPERATOR:
      source = "by operator";
      break;
    case v1::PlanSpec::SOURCE_FILE:
      source = "by an edit of the config file of";
      break;
    case v1::PlanSpec::SOURCE_FIRST_RANK:
      source = "by the first rank of the run,";
      break;
    case v1::PlanSpec::SOURCE_TRIGGER:
      source = "by rule";
      break;
    default:
      return "";
  }
  // A collector without tokens does not know names.
  if (response.source() == v1::PlanSpec::SOURCE_OPERATOR &&
      response.source_detail() == "anybody")
    return ", by an operator";
  return absl::StrCat(", ", source, " ", response.source_detail());
}

absl::Status ConfigGet(const Globals& globals, const std::string& run) {
  const Client client(globals);
  v1::GetConfigRequest request;
  RP_ASSIGN_OR_RETURN(*request.mutable_run(), ChooseRun(client, run));
  RP_ASSIGN_OR_RETURN(const v1::GetConfigResponse response,
                      client.Ask(&ControlStub::GetConfig, request));
  if (globals.json) {
    PrintJson(ToJson(response));
  } else {
    const std::string steps =
        response.from_first_step()
            ? absl::StrCat("for ", Counted(response.for_steps(), "step"),
                           " from the first that a rank begins")
        : response.for_steps() == 0
            ? absl::StrCat("from step ", response.effective_at_step())
            : absl::StrCat(
                  "in steps ", response.effective_at_step(), " to ",
                  response.effective_at_step() + response.for_steps() - 1);
    // The number is that in column PLAN of `status`.
    Print(stdout, "plan %d: recording %s %s%s\n", response.epoch(),
          response.enabled() ? "on" : "off", steps, SourceText(response));
    if (!response.config_fault().empty()) {
      Print(stdout, "recording is kept off: %s\n", response.config_fault());
    }
    if (!response.api_list().empty()) {
      Print(stdout, "functions: a list of %s (--json has it)\n",
            Counted(response.api_list().size(), "byte"));
    }
    Print(stdout, "%s\n", Lines{response.config_json()});
  }
  return absl::OkStatus();
}

void AddSwitchFlags(CLI::App* verb, SwitchFlags* flags) {
  verb->add_option("--run", flags->run,
                   "the run; may be left out when one is connected");
  verb->add_option("--ranks", flags->ranks, "like 0,2-3; all if left out")
      ->check(WhyNoRanges);
  verb->add_option(
          "--at-step", flags->at_step,
          "first step; the earliest one all ranks can reach if left out")
      ->check(IntegerWithin(0, kLargestStep));
  verb->add_option("--wait", flags->wait_seconds,
                   "seconds to wait for all ranks")
      ->check(NumberWithin(0.1, 600.0));
  verb->add_option("--epoch", flags->epoch,
                   "switch only if the run is still at this epoch")
      ->check(IntegerWithin(0, std::numeric_limits<int64_t>::max()));
  verb->add_flag(
      "--create", flags->create,
      "the run may not exist yet: its ranks get this when they connect");
  verb->add_flag("--no-wait", flags->no_wait,
                 "do not wait for the step to come");
}

}  // namespace

void RegisterSwitchCommands(const Registry& to) {
  const auto [enable, on] = to.Add<SwitchFlags>(
      "enable", "switch recording on, on the same step of all chosen ranks",
      [](const Globals& globals, const SwitchFlags& flags, int* exit_code) {
        return SetEnable(globals, flags, true, exit_code);
      });
  AddSwitchFlags(enable, on);
  enable
      ->add_option("--for-steps", on->for_steps,
                   "number of steps, after which recording is switched off")
      ->check(IntegerWithin(1, kLargestStep));
  enable->add_option("--config", on->config, "config.json to use from now on");
  CLI::Option* const one =
      enable
          ->add_option("--request", on->request,
                       "for a server: record only steps with this request, and "
                       "only its rows; stays in the run's config")
          ->check([](const std::string& id) -> std::string {
            return id.empty() ? "an empty id; --all-requests records all" : "";
          });
  enable
      ->add_flag("--all-requests", on->all_requests,
                 "take --request out of the run's config again")
      ->excludes(one);

  const auto [disable, off] = to.Add<SwitchFlags>(
      "disable", "switch recording off",
      [](const Globals& globals, const SwitchFlags& flags, int* exit_code) {
        return SetEnable(globals, flags, false, exit_code);
      });
  AddSwitchFlags(disable, off);

  const Registry config =
      to.AddGroup("config", "read or replace a run's config.json");
  const auto [get, run] = config.Add<std::string>("get", "print it", ConfigGet);
  get->add_option("--run", *run,
                  "the run; may be left out when one is connected");
  const auto [schema, markdown] = config.AddLocal<bool>(
      "schema", "print the JSON schema of config.json, for editors",
      [](const Globals&, bool for_readers) {
        Print(stdout, "%s",
              Lines{for_readers ? ConfigMarkdown() : ConfigJsonSchema()});
        return absl::OkStatus();
      });
  schema->add_flag("--markdown", *markdown,
                   "the same for readers: tables of all fields");
  const auto [set, flags] = config.Add<SwitchFlags>(
      "set", "replace it, on the same step on all chosen ranks", ConfigSet);
  AddSwitchFlags(set, flags);
  set->add_option("FILE", flags->config,
                  "config.json; its dump_enable switches dumping on or off, "
                  "and without it dumping stays as it is; enable --for-steps "
                  "ends as planned in any case")
      ->required();
  CLI::Option* const list = set->add_option(
      "--api-list", flags->api_list,
      "functions to record instead: JSON, or msprobe's support_wrap_ops.yaml");
  set->add_flag("--own-api-list", flags->own_api_list,
                "use each rank's own list of functions again")
      ->excludes(list);
}

}  // namespace rankprobe
