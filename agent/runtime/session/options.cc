// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/options.h"

#include <unistd.h>

#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxJobBytes = 255;

absl::StatusOr<std::optional<int64_t>> Number(const Environment& environment,
                                              const char* name, int64_t min) {
  const char* const text = environment(name);
  if (text == nullptr || *text == '\0') return std::optional<int64_t>();
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < min) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", text, " is not an integer >= ", min));
  }
  return std::optional<int64_t>(value);
}

std::string HostName() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return "unknown";
  return host.data();
}

}  // namespace

absl::StatusOr<SessionOptions> MakeSessionOptions(
    const AgentSettings& settings, const Environment& environment,
    const Clock& clock) {
  const auto text = [&](const char* name) {
    const char* const value = environment(name);
    return std::string(value == nullptr ? "" : value);
  };
  SessionOptions options;
  options.collector = settings.collector.empty() ? text("RANKPROBE_COLLECTOR")
                                                 : settings.collector;
  ChannelSecurityFiles files = settings.security;
  FillFromEnvironment(environment, &files);
  RP_ASSIGN_OR_RETURN(options.security, ReadChannelSecurity(files));
  options.identity.set_host(HostName());
  options.identity.set_pid(::getpid());
  std::string run = settings.run;
  if (run.empty()) run = text("RANKPROBE_RUN");
  if (run.empty()) run = text("TORCHELASTIC_RUN_ID");
  if (run.empty() || run == "none") {
    run = absl::StrCat(options.identity.host(), "-", ::getpid(), "-",
                       absl::ToUnixSeconds(clock.Now()));
  }
  options.identity.set_run(run);
  std::optional<int64_t> rank = settings.rank, world_size = settings.world_size;
  if (!rank.has_value()) {
    RP_ASSIGN_OR_RETURN(rank, Number(environment, "RANK", 0));
  }
  if (!world_size.has_value()) {
    RP_ASSIGN_OR_RETURN(world_size, Number(environment, "WORLD_SIZE", 1));
  }
  if (rank.has_value()) options.identity.set_rank(*rank);
  options.identity.set_world_size(world_size.value_or(0));
  options.identity.set_job(text("RANKPROBE_JOB").substr(0, kMaxJobBytes));
  const auto is_restart = [&text](const char* count) {
    return !text(count).empty() && text(count) != "0";
  };
  options.tell_other = settings.kept_directory.empty() &&
                       !is_restart("TORCHELASTIC_RESTART_COUNT") &&
                       !is_restart("SLURM_RESTART_COUNT");
  options.replica = text("RANKPROBE_REPLICA");
  if (options.replica.size() > 255) {
    return absl::InvalidArgumentError(
        "RANKPROBE_REPLICA has at most 255 bytes");
  }
  RP_ASSIGN_OR_RETURN(const std::optional<int64_t> queue_mb,
                      Number(environment, "RANKPROBE_QUEUE_MB", 1));
  if (queue_mb.has_value())
    options.queue_budget_bytes = static_cast<uint64_t>(*queue_mb) << 20;
  RP_ASSIGN_OR_RETURN(const std::optional<int64_t> wait_ms,
                      Number(environment, "RANKPROBE_WAIT_MS", 1));
  if (wait_ms.has_value()) {
    options.block_deadline = options.silence_deadline =
        options.missing_deadline = options.drain_deadline =
            absl::Milliseconds(*wait_ms);
  }
  const std::string policy = text("RANKPROBE_POLICY");
  if (policy == "stats_only") {
    options.policy = OverflowPolicy::kStatsOnly;
  } else if (policy == "drop_newest") {
    options.policy = OverflowPolicy::kDropNewest;
  } else if (!policy.empty() && policy != "block") {
    return absl::InvalidArgumentError(
        absl::StrCat("RANKPROBE_POLICY=", policy,
                     " is not one of block, stats_only, drop_newest"));
  }
  const bool explicitly = !settings.on_collector_missing.empty();
  const std::string missing = explicitly
                                  ? settings.on_collector_missing
                                  : text("RANKPROBE_ON_COLLECTOR_MISSING");
  if (missing == "spool") {
    options.on_missing = MissingCollector::kSpool;
  } else if (missing == "fail") {
    options.on_missing = MissingCollector::kFail;
  } else if (!missing.empty() && missing != "ignore") {
    return absl::InvalidArgumentError(absl::StrCat(
        explicitly ? "on_collector_missing" : "RANKPROBE_ON_COLLECTOR_MISSING",
        "=", missing, " is not one of ignore, spool, fail"));
  }
  options.spool_directory = text("RANKPROBE_SPOOL");
  const std::string stop = text("RANKPROBE_STOP");
  if (stop == "kept") {
    options.stop_barrier = StopBarrier::kKept;
  } else if (!stop.empty() && stop != "committed") {
    return absl::InvalidArgumentError(absl::StrCat(
        "RANKPROBE_STOP=", stop, " is not one of committed, kept"));
  } else if (stop.empty() && options.spool_directory.empty() &&
             !settings.kept_directory.empty()) {
    options.stop_barrier = StopBarrier::kKept;
    options.spool_directory = settings.kept_directory;
    options.spool_is_attended = true;
  }
  options.remember_payloads = text("RANKPROBE_RESEND").empty();
  const std::string lane = text("RANKPROBE_LANE");
  if (lane == "off") {
    options.lane = false;
  } else if (!lane.empty() && lane != "on") {
    return absl::InvalidArgumentError(
        absl::StrCat("RANKPROBE_LANE=", lane, " is not one of on, off"));
  }
  RP_ASSIGN_OR_RETURN(const std::optional<int64_t> spool_mb,
                      Number(environment, "RANKPROBE_SPOOL_MB", 1));
  if (spool_mb.has_value())
    options.spool_bytes = static_cast<uint64_t>(*spool_mb) << 20;
  options.agent_version = Version();
  return options;
}

}  // namespace rankprobe
