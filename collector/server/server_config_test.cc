// SPDX-License-Identifier: Apache-2.0
#include "collector/server/server_config.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ServerConfigTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& json) const {
    const std::string path = directory_.path() + "/c.json";
    std::ofstream(path) << json;
    return path;
  }
  static absl::StatusOr<ParsedCommandLine> Parse(
      const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"rankprobed"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    return ParseServerCommandLine(static_cast<int>(argv.size()), argv.data());
  }

  const testing::ScratchDirectory directory_;
};

TEST_F(ServerConfigTest, TheFileHasTheKeysOfTheFlags) {
  const auto parsed = Parse({"--config", Write(R"({
      "listen": "[::1]:0", "data-dir": "/d", "port-file": "", "log-level": "debug",
      "tls-cert": "c", "tls-key": "k", "metrics-host": "127.0.0.2",
      "export-root": ["/a", "/b c"], "insecure": false, "compress-payloads": true,
      "metrics-port": 0, "metrics-values": ["a*", "b"], "worker-threads": 7,
      "web-listen": "[::1]:8080", "web-name": ["node0", "n"], "web-root": "/w",
      "retention-bytes": 1099511627776})")});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const ServerConfig& config = parsed->config;
  EXPECT_EQ(config.listen, "[::1]:0");
  EXPECT_EQ(config.data_dir, "/d");
  EXPECT_EQ(config.port_file, "");
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.tls_cert, "c");
  EXPECT_EQ(config.tls_key, "k");
  EXPECT_EQ(config.metrics_host, "127.0.0.2");
  EXPECT_THAT(config.export_roots, ElementsAre("/a", "/b c"));
  EXPECT_FALSE(config.insecure);
  EXPECT_TRUE(config.compress_payloads);
  EXPECT_EQ(config.metrics_port, 0);
  EXPECT_THAT(config.metrics_values, ElementsAre("a*", "b"));
  EXPECT_EQ(config.web_listen, "[::1]:8080");
  EXPECT_THAT(config.web_names, ElementsAre("node0", "n"));
  EXPECT_EQ(config.web_root, "/w");
  EXPECT_EQ(config.worker_threads, 7u);
  EXPECT_EQ(config.retention_bytes, uint64_t{1} << 40);
  EXPECT_EQ(config.max_sessions, ServerConfig().max_sessions);
}

TEST_F(ServerConfigTest, FlagsBeatTheFile) {
  const std::string file = Write(R"({
      "data-dir": "/file", "export-root": ["/file"], "worker-threads": 7,
      "metrics-port": 1, "insecure": false, "log-level": "debug"})");
  const auto parsed =
      Parse({"--data-dir", "/flag", "--config", file, "--export-root", "/one",
             "--export-root", "/two", "--worker-threads=9", "--metrics-port",
             "2", "--insecure"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.data_dir, "/flag");
  EXPECT_THAT(parsed->config.export_roots, ElementsAre("/one", "/two"));
  EXPECT_EQ(parsed->config.worker_threads, 9u);
  EXPECT_EQ(parsed->config.metrics_port, 2);
  EXPECT_TRUE(parsed->config.insecure);
  EXPECT_EQ(parsed->config.log_level, "debug");
}

TEST_F(ServerConfigTest, EveryFaultIsNamed) {
  const auto parsed = Parse({"--config", Write(R"({
      "listen": "nowhere", "segment-bytes": -5, "worker-threads": "4",
      "no-such-key": 1, "insecure": "yes", "tls-cert": 3, "metrics-port": 70000,
      "export-root": ["relative"], "log-level": "loud", "job-dir": "/j",
      "config": "c", "rebuild-index": true})")});
  ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << parsed.status();
  for (const char* const word :
       {"listen", "segment-bytes", "worker-threads", "no-such-key", "insecure",
        "tls-cert", "metrics-port", "export-root", "log-level", "job-dir",
        "config", "rebuild-index", "data-dir"})
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(word));
}

TEST_F(ServerConfigTest, AUnixSocketNeedsNoSecretsAndIsOfOneMachine) {
  const auto parsed = Parse({"--data-dir", "/d", "--listen", "unix:/run/s"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.listen, "unix:/run/s");
  EXPECT_THAT(std::string(Parse({"--data-dir", "/d", "--listen",
                                 "unix:/" + std::string(107, 'x')})
                              .status()
                              .message()),
              HasSubstr("listen: address \"unix:/xxx"));
  for (const std::vector<std::string>& role :
       {std::vector<std::string>{"--role", "root"},
        std::vector<std::string>{"--role", "leaf", "--root", "node7:1",
                                 "--advertise", "node8:1"}}) {
    std::vector<std::string> flags = {
        "--data-dir", "/d", "--listen", "unix:/run/s", "--object-store", "/o"};
    flags.insert(flags.end(), role.begin(), role.end());
    EXPECT_THAT(std::string(Parse(flags).status().message()),
                HasSubstr("HOST:PORT for a root and its leaves"));
  }
}

TEST_F(ServerConfigTest, AMistypedFlagIsNamedAlone) {
  EXPECT_EQ(Parse({"--lisen", "127.0.0.1:0"}).status().message(),
            "there is no flag --lisen; did you mean --listen? (see --help)");
  EXPECT_EQ(Parse({"--data-dri=/d"}).status().message(),
            "there is no flag --data-dri; did you mean --data-dir? (see "
            "--help)");
  const auto parsed =
      Parse({"--config", Write(R"({"data-dir": "/d", "lisen": "x:1"})")});
  EXPECT_THAT(std::string(parsed.status().message()),
              HasSubstr("lisen: this key is not legal; expected a known key "
                        "(see --help); did you mean listen?"));
}

TEST_F(ServerConfigTest, AFileThatIsNoneIsNamed) {
  for (const char* const json : {"", "[]", "{\"data-dir\": ", "{} x"}) {
    const std::string file = Write(json);
    const auto parsed = Parse({"--data-dir", "/d", "--config", file});
    ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << json;
    EXPECT_THAT(std::string(parsed.status().message()),
                AllOf(HasSubstr("config"), HasSubstr(file),
                      Not(HasSubstr("is not legal"))));
  }
  for (const std::string& path :
       {directory_.path() + "/none.json", directory_.path()}) {
    const auto parsed = Parse({"--data-dir", "/d", "--config", path});
    ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << path;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(path));
  }
}

TEST_F(ServerConfigTest, AFileThatIsNotThereIsTheOnlyFault) {
  EXPECT_EQ(Parse({"--config", "/no/such.json"}).status().message(),
            "/no/such.json was not readable (missing?) (see --help)");
}

TEST_F(ServerConfigTest, ALeafLooksAtItsDisk) {
  using Percents = std::pair<uint64_t, uint64_t>;
  const auto percents = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data-dir", "/d"});
    const auto parsed = Parse(flags);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? Percents(parsed->config.disk_high_percent,
                                  parsed->config.disk_full_percent)
                       : Percents();
  };
  const auto leaf = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--role", "leaf", "--object-store", "/o"});
    return percents(flags);
  };
  EXPECT_EQ(percents({}), Percents(0, 0));
  EXPECT_EQ(percents({"--disk-high-percent", "60"}), Percents(60, 0));
  EXPECT_EQ(percents({"--disk-full-percent", "80"}), Percents(0, 80));
  EXPECT_EQ(leaf({}), Percents(70, 90));
  EXPECT_EQ(leaf({"--disk-high-percent", "0"}), Percents(0, 90));
  EXPECT_EQ(leaf({"--disk-full-percent", "0"}), Percents(70, 0));
  EXPECT_EQ(leaf({"--disk-full-percent", "50"}), Percents(49, 50));
  EXPECT_EQ(leaf({"--config", Write(R"({"disk-high-percent": 20})")}),
            Percents(20, 90));
  EXPECT_THAT(Parse({"--data-dir", "/d", "--disk-high-percent", "90",
                     "--disk-full-percent", "90"})
                  .status()
                  .message(),
              HasSubstr("disk-high-percent: 90"));
  EXPECT_THAT(Parse({"--data-dir", "/d", "--disk-full-percent", "101"})
                  .status()
                  .message(),
              HasSubstr("0..100"));
}

TEST_F(ServerConfigTest, LeanIsOfLimitsThatAreNotGiven) {
  const auto parsed = Parse({"--data-dir", "/d", "--config",
                             Write(R"({"lean": true, "credit-bytes": 100000})"),
                             "--pending-bytes", "9000000"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.credit_bytes, 100000u);
  EXPECT_EQ(parsed->config.pending_bytes, 9000000u);
  const ServerConfig usual;
  EXPECT_LT(parsed->config.index_cache_bytes, usual.index_cache_bytes);
  EXPECT_LT(parsed->config.index_write_bytes, usual.index_write_bytes);
}

TEST_F(ServerConfigTest, NumbersOfFlagsAreChecked) {
  const auto parsed = Parse(
      {"--data-dir", "/d", "--worker-threads", "0", "--segment-bytes", "many"});
  ASSERT_TRUE(absl::IsInvalidArgument(parsed.status()));
  EXPECT_THAT(std::string(parsed.status().message()),
              AllOf(HasSubstr("worker-threads"), HasSubstr("segment-bytes")));
  EXPECT_FALSE(Parse({"--data-dir", "/d", "--no-such-flag"}).ok());
  EXPECT_FALSE(Parse({"--data-dir", "/d", "--metrics-port", "x"}).ok());
  const auto values =
      Parse({"--data-dir", "/d", "--metrics-port", "1", "--metrics-values",
             "a b", "--metrics-values", "*"});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->config.metrics_values, ElementsAre("a b", "*"));
  for (const std::string& bad : {std::string(), std::string(4097, 'x')}) {
    EXPECT_THAT(std::string(Parse({"--data-dir", "/d", "--metrics-port", "1",
                                   "--metrics-values", bad})
                                .status()
                                .message()),
                HasSubstr("a pattern of 1 to 4096 bytes"));
  }
  EXPECT_THAT(std::string(Parse({"--data-dir", "/d", "--metrics-values", "x"})
                              .status()
                              .message()),
              HasSubstr("given with metrics-port"));
}

}  // namespace
}  // namespace rankprobe
