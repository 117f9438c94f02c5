// SPDX-License-Identifier: Apache-2.0
#include "collector/server/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/server/metrics_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Ask(int port, const std::string& request) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
            0);
  EXPECT_EQ(::send(fd, request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> data;
  ssize_t n = 0;
  while ((n = ::recv(fd, data.data(), data.size(), 0)) > 0)
    answer.append(data.data(), static_cast<size_t>(n));
  ::close(fd);
  return answer;
}

TEST(MetricsTest, TextHasWhatHappened) {
  IngestMetrics ingest;
  ingest.accepted_frames = 7;
  ingest.sync_seconds.Add(absl::Milliseconds(3));
  ingest.sync_seconds.Add(absl::Seconds(2));
  ExportMetrics exports;
  MetricsInput input;
  input.ingest = &ingest;
  input.exports = &exports;
  input.store.stored_payload_bytes = 100;
  input.store.offered_payload_bytes = 250;
  input.store.lost_records["AGENT_BUDGET"] = 4;
  input.garbage.live_bytes = 60;
  input.dropped_audit = 9;
  input.garbage.total_bytes = 100;
  v1::AgentInfo* agent = input.agents.add_agents();
  agent->set_connected(true);
  agent->mutable_identity()->set_run("run");
  agent->set_plan_epoch(5);
  agent = input.agents.add_agents();
  agent->set_connected(true);
  agent->mutable_identity()->set_run("run");
  agent->set_plan_epoch(3);
  const std::string text = MetricsText(input);
  for (const char* line :
       {"rankprobe_accepted_frames_total 7\n", "rankprobe_dedup_ratio 2.5\n",
        "rankprobe_shed_total{reason=\"AGENT_BUDGET\"} 4\n",
        "rankprobe_epoch_lag 2\n", "rankprobe_audit_dropped_total 9\n",
        "rankprobe_sessions{state=\"connected\"} 2\n",
        "rankprobe_segment_bytes{kind=\"dead\"} 40\n",
        "rankprobe_sync_seconds_bucket{le=\"0.005\"} 1\n",
        "rankprobe_sync_seconds_bucket{le=\"5\"} 2\n",
        "rankprobe_sync_seconds_count 2\n",
        "# TYPE rankprobe_sync_seconds "
        "histogram\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(MetricsTest, SaysHowFullTheDiskIsWhereSomebodyLooks) {
  const IngestMetrics ingest;
  const ExportMetrics exports;
  MetricsInput input;
  input.ingest = &ingest;
  input.exports = &exports;
  EXPECT_THAT(MetricsText(input), Not(HasSubstr("disk_pressure")));
  v1::DiskState& disk = input.disk.emplace();
  disk.set_used_percent(91);
  disk.set_refused_payloads(3);
  disk.set_refused_payload_bytes(300);
  for (const auto& [level, number] :
       {std::pair(v1::DiskState::LEVEL_ROOM, 0),
        std::pair(v1::DiskState::LEVEL_HIGH, 1),
        std::pair(v1::DiskState::LEVEL_FULL, 2)}) {
    disk.set_level(level);
    EXPECT_THAT(
        MetricsText(input),
        HasSubstr(absl::StrCat("rankprobe_disk_pressure ", number, "\n")));
  }
  for (const char* line : {"rankprobe_disk_used_percent 91\n",
                           "rankprobe_disk_refused_payloads_total 3\n",
                           "rankprobe_disk_refused_payload_bytes_total 300\n"})
    EXPECT_THAT(MetricsText(input), HasSubstr(line));
}

TEST(MetricsTest, ValuesAreThereWhereSomebodyAskedForThem) {
  const IngestMetrics ingest;
  const ExportMetrics exports;
  MetricsInput input;
  input.ingest = &ingest;
  input.exports = &exports;
  EXPECT_THAT(MetricsText(input), Not(HasSubstr("rankprobe_value")));
  NewestValues& values = input.values.emplace();
  values.steps = {{"a \"run\"\n", "rank0", 7}};
  const double kInf = std::numeric_limits<double>::infinity();
  values.values = {{0, "Module.f\\c.output.0", {1.5, kInf, -kInf, {}}},
                   {0, "w", {std::nan(""), {}, {}, {}}}};
  values.left_out = 3;
  values.complete = false;
  const std::string text = MetricsText(input);
  const std::string place = R"({run="a \"run\"\\n",process="rank0")";
  const std::string fc = R"(,name="Module.f\\c.output.0",statistic=)";
  for (const std::string& line :
       {absl::StrCat("rankprobe_value_step", place, "} 7\n"),
        absl::StrCat("rankprobe_value", place, fc, "\"Norm\"} 1.5\n"),
        absl::StrCat("rankprobe_value", place, fc, "\"Max\"} +Inf\n"),
        absl::StrCat("rankprobe_value", place, fc, "\"Min\"} -Inf\n"),
        absl::StrCat("rankprobe_value", place,
                     R"(,name="w",statistic="Norm"} NaN)", "\n"),
        std::string("rankprobe_values_left_out 3\n"),
        std::string("rankprobe_values_complete 0\n")}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("Mean"))) << "what is not there is not 0";
}

TEST(MetricsServerTest, AnswersItsPathOnly) {
  const auto text = [] { return "a 1\n"; };
  const auto server = StartMetrics("127.0.0.1", 0, text);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto ask = [&](const std::string& line) {
    return Ask((*server)->port(),
               absl::StrCat(line, " HTTP/1.1\r\nConnection: close\r\n\r\n"));
  };
  EXPECT_THAT(ask("GET /metrics"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(ask("GET /metrics?a=b"), HasSubstr("\r\n\r\na 1\n"));
  EXPECT_THAT(ask("GET /metricsx"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("POST /metrics"), StartsWith("HTTP/1.1 404"));
  EXPECT_FALSE(StartMetrics("127.0.0.1", (*server)->port(), text).ok());
  EXPECT_EQ(StartMetrics("localhost", 0, text).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A head without an end only costs its own connection.
  EXPECT_THAT(Ask((*server)->port(), std::string(9000, 'x')),
              Not(HasSubstr("200")));
}

// Prometheus runs on another machine, and has its own name for this one.
TEST(MetricsServerTest, AnswersOnEveryAddressAndByEveryName) {
  const auto server = StartMetrics("0.0.0.0", 0, [] { return "a 1\n"; });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Ask((*server)->port(),
                  "GET /metrics HTTP/1.1\r\nHost: node7.cluster:9\r\n"
                  "Connection: close\r\n\r\n"),
              HasSubstr("\r\n\r\na 1\n"));
}

}  // namespace
}  // namespace rankprobe
