// SPDX-License-Identifier: Apache-2.0
#include "collector/server/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

class Text {
 public:
  template <typename T>
  void Counter(const char* name, const char* help, T value) {
    Head(name, help, "counter");
    Line(name, "", value);
  }
  template <typename T>
  void Gauge(const char* name, const char* help, T value) {
    Head(name, help, "gauge");
    Line(name, "", value);
  }
  void Head(const char* name, const char* help, const char* type) {
    absl::StrAppend(&out_, "# HELP rankprobe_", name, " ", help,
                    "\n# TYPE rankprobe_", name, " ", type, "\n");
  }
  template <typename T>
  void Line(const std::string& name, const std::string& labels, T value) {
    absl::StrAppend(&out_, "rankprobe_", name, labels, " ", value, "\n");
  }
  void Histogram(const char* name, const char* help,
                 const DurationHistogram& histogram) {
    Head(name, help, "histogram");
    const std::string base(name);
    uint64_t count = 0;
    for (size_t i = 0; i < DurationHistogram::kBounds.size(); ++i) {
      count += histogram.bucket(i);
      Line(base + "_bucket",
           absl::StrCat("{le=\"", DurationHistogram::kBounds[i], "\"}"), count);
    }
    count += histogram.bucket(DurationHistogram::kBounds.size());
    Line(base + "_bucket", "{le=\"+Inf\"}", count);
    Line(base + "_sum", "", histogram.sum_seconds());
    Line(base + "_count", "", count);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

void Agents(const v1::ListAgentsResponse& agents, Text* text) {
  uint64_t connected = 0, gone = 0, lost_records = 0, lost_payloads = 0;
  std::map<std::string, uint64_t> newest_epoch;
  for (const v1::AgentInfo& agent : agents.agents()) {
    uint64_t& epoch = newest_epoch[agent.identity().run()];
    epoch = std::max(epoch, agent.plan_epoch());
  }
  uint64_t epoch_lag = 0;
  int64_t step_lag = 0;
  for (const v1::AgentInfo& agent : agents.agents()) {
    lost_records += agent.lost_records();
    lost_payloads += agent.lost_payloads();
    if (!agent.connected()) {
      ++gone;
      continue;
    }
    ++connected;
    epoch_lag = std::max(
        epoch_lag, newest_epoch[agent.identity().run()] - agent.plan_epoch());
    step_lag = std::max(step_lag, agent.lag_steps());
  }
  text->Head("sessions", "Agents by state.", "gauge");
  text->Line("sessions", "{state=\"connected\"}", connected);
  text->Line("sessions", "{state=\"gone\"}", gone);
  text->Gauge("agent_lost_records",
              "Records shed by the agents known now, as they say.",
              lost_records);
  text->Gauge("agent_lost_payloads",
              "Payloads shed by the agents known now, as they say.",
              lost_payloads);
  text->Gauge("epoch_lag",
              "Plan epochs by which the slowest connected agent is behind its "
              "run's newest.",
              epoch_lag);
  text->Gauge("step_lag",
              "Steps by which the slowest connected agent is behind its run's "
              "furthest.",
              step_lag);
}

// Escaped, because the names are chosen by programs.
std::string Label(absl::string_view name, absl::string_view text) {
  return absl::StrCat(
      name, "=\"",
      absl::StrReplaceAll(VisibleText(text), {{"\\", "\\\\"}, {"\"", "\\\""}}),
      "\"");
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.9g", value);
}

void Values(const NewestValues& values, Text* text) {
  const auto place = [&values](size_t step) {
    const NewestStep& at = values.steps[step];
    return absl::StrCat(Label("run", at.run), ",",
                        Label("process", at.process));
  };
  text->Head(
      "value_step",
      "Newest step of a process that has ended, of which its values are.",
      "gauge");
  for (size_t i = 0; i < values.steps.size(); ++i) {
    text->Line("value_step", absl::StrCat("{", place(i), "}"),
               values.steps[i].step);
  }
  text->Head("value", "Statistic of a value that --metrics-values names.",
             "gauge");
  for (const NewestValue& value : values.values) {
    for (size_t i = 0; i < kNewestStats.size(); ++i) {
      if (!value.numbers[i].has_value()) continue;
      text->Line(
          "value",
          absl::StrCat("{", place(value.step), ",", Label("name", value.name),
                       ",", Label("statistic", kStatInfo[kNewestStats[i]].key),
                       "}"),
          Number(*value.numbers[i]));
    }
  }
  text->Gauge("values_left_out",
              "Values that --metrics-values names beyond the most that are "
              "shown.",
              values.left_out);
  text->Gauge("values_complete",
              "0 when reading the values took too long and some are missing.",
              values.complete ? 1 : 0);
}

}  // namespace

std::string MetricsText(const MetricsInput& input) {
  Text text;
  const IngestMetrics& ingest = *input.ingest;
  text.Counter("accepted_frames_total", "Frames that passed admission.",
               ingest.accepted_frames.load());
  text.Counter("accepted_bytes_total", "Bytes of frames that passed admission.",
               ingest.accepted_bytes.load());
  text.Counter(
      "lane_bytes_total",
      "Of these, bytes read from memory that ranks on this host share.",
      ingest.lane_bytes.load());
  text.Counter("committed_bytes_total",
               "Bytes of frames that survive a crash of the collector.",
               ingest.committed_bytes.load());
  text.Counter("duplicate_frames_total",
               "Frames that were received again after a reconnect.",
               ingest.duplicate_frames.load());
  text.Counter("refused_frames_total",
               "Frames that were refused for what they were.",
               ingest.refused_frames.load());
  text.Counter("damaged_frames_total",
               "Frames damaged in transit; they are asked for again",
               ingest.damaged_frames.load());
  text.Counter("no_space_retries_total",
               "Times that ingest waited for free disk space.",
               ingest.no_space_retries.load());
  text.Head("shed_total", "Records lost by reason, of all runs in the archive.",
            "gauge");
  for (const auto& [reason, count] : input.store.lost_records) {
    text.Line("shed_total", absl::StrCat("{reason=\"", reason, "\"}"), count);
  }
  text.Gauge("stored_records", "Records in the archive.", input.store.records);
  text.Gauge("stored_payload_bytes", "Bytes of distinct payloads.",
             input.store.stored_payload_bytes);
  text.Gauge("offered_payload_bytes", "Bytes of all references to payloads.",
             input.store.offered_payload_bytes);
  text.Gauge("dedup_ratio", "Offered over stored payload bytes.",
             input.store.stored_payload_bytes == 0
                 ? 1.0
                 : static_cast<double>(input.store.offered_payload_bytes) /
                       static_cast<double>(input.store.stored_payload_bytes));
  text.Histogram("commit_seconds", "Duration of group commits.",
                 ingest.commit_seconds);
  text.Histogram("sync_seconds", "Duration of syncs to the disk.",
                 ingest.sync_seconds);
  text.Gauge("lanes",
             "Ranks on this host that share memory with the collector.",
             input.lanes);
  text.Gauge("pending_bytes", "Frames received and not yet committed.",
             input.pending_bytes);
  Agents(input.agents, &text);
  text.Head("segment_bytes",
            "Bytes of payload segments, at the last round of "
            "the janitor.",
            "gauge");
  text.Line("segment_bytes", "{kind=\"live\"}", input.garbage.live_bytes);
  text.Line("segment_bytes", "{kind=\"dead\"}",
            input.garbage.total_bytes -
                std::min(input.garbage.total_bytes, input.garbage.live_bytes));
  text.Gauge("disk_free_bytes", "Free space of the data directory.",
             input.disk_free_bytes);
  if (input.disk.has_value()) {
    text.Gauge("disk_used_percent",
               "Share in use of the disk space that the archive may use.",
               input.disk->used_percent());
    text.Gauge("disk_pressure",
               "1 when payloads are refused because the disk is full, 2 when "
               "only records are accepted.",
               input.disk->level() == v1::DiskState::LEVEL_FULL   ? 2
               : input.disk->level() == v1::DiskState::LEVEL_HIGH ? 1
                                                                  : 0);
    text.Counter("disk_refused_payloads_total",
                 "Payloads that were refused because the disk was full.",
                 input.disk->refused_payloads());
    text.Counter("disk_refused_payload_bytes_total", "Bytes of these payloads.",
                 input.disk->refused_payload_bytes());
  }
  text.Gauge("archive_failed", "1 when the archive takes no more writes.",
             input.archive_failed ? 1 : 0);
  text.Counter(
      "audit_dropped_total",
      "Audit lines of agents' actions that the audit log did not receive.",
      input.dropped_audit);
  text.Counter("export_bytes_total", "Bytes of finished exports.",
               input.exports->bytes.load());
  text.Counter("export_failures_total", "Exports that ended with an error.",
               input.exports->failed.load());
  text.Histogram("export_seconds", "Duration of finished exports.",
                 input.exports->seconds);
  if (input.values.has_value()) Values(*input.values, &text);
  return text.Take();
}

}  // namespace rankprobe
