// SPDX-License-Identifier: Apache-2.0
#include "collector/server/server_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collector/object_store/open_object_store.h"
#include "collector/server/server_manual.h"
#include "collector/server/web_page.h"
#include "common/base/collector_address.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/config_reader.h"
#include "common/manual/manual.h"
#include "common/manual/unknown_flag.h"
#include "common/text/nearest.h"

namespace rankprobe {
namespace {

struct TextKey {
  const char* name;
  std::string ServerConfig::*field;
  const char* help;
};

constexpr TextKey kTexts[] = {
    {"tls-cert", &ServerConfig::tls_cert,
     "PEM certificate chain of this collector: the port speaks TLS"},
    {"tls-key", &ServerConfig::tls_key, "PEM key of --tls-cert"},
    {"tls-client-ca", &ServerConfig::tls_client_ca,
     "PEM certificates that vouch for clients (mutual TLS)"},
    {"token-file", &ServerConfig::token_file,
     "file of bearer tokens, one `ROLE NAME TOKEN [BINDING..]` a line"},
    {"metrics-host", &ServerConfig::metrics_host,
     "IPv4 address that --metrics-port listens on (127.0.0.1); a client that "
     "can connect reads counts, and the statistics that --metrics-values "
     "names, never tensors"},
    {"web-listen", &ServerConfig::web_listen,
     "serve the page of `rankprobe view` on this address, with --tls-cert by "
     "TLS; beyond loopback with --tls-cert and --token-file only. A viewer's "
     "token looks, an operator's switches"},
    {"root-ca", &ServerConfig::root_ca,
     "with --root: PEM certificates that vouch for the root; the connection to "
     "it is TLS, with --tls-cert as this leaf's own"},
    {"root-token-file", &ServerConfig::root_token_file,
     "with --root: file with this leaf's token, which the root's token file "
     "has as `leaf NAME TOKEN`"},
    {"web-root", &ServerConfig::web_root,
     "with --web-listen: the page shows the graph databases and dumps below "
     "this directory, too, and writes nothing there"},
    {"triggers", &ServerConfig::trigger_file,
     "JSON file with flight recorder, triggers and budgets of runs that were "
     "given none"},
};

struct NumberKey {
  const char* name;
  uint64_t ServerConfig::*field;
  uint64_t min;
  uint64_t max;
  const char* help;
};

constexpr uint64_t kTiB = uint64_t{1} << 40;
constexpr size_t kMaxPatternBytes = 4096;
constexpr NumberKey kNumbers[] = {
    {"max-sessions", &ServerConfig::max_sessions, 1, 1000000,
     "agents connected at once"},
    {"credit-bytes", &ServerConfig::credit_bytes, 64 << 10, 1 << 30,
     "unacknowledged bytes one agent may have in flight"},
    {"pending-bytes", &ServerConfig::pending_bytes, 8 << 20, kTiB,
     "uncommitted bytes of all agents"},
    {"commit-batch-bytes", &ServerConfig::commit_batch_bytes, 64 << 10, 1 << 30,
     "bytes of one group commit"},
    {"segment-bytes", &ServerConfig::segment_bytes, 1 << 20, kTiB,
     "size of a payload segment file"},
    {"max-payload-bytes", &ServerConfig::max_payload_bytes, 1, kTiB,
     "largest tensor that is accepted"},
    {"min-free-bytes", &ServerConfig::min_free_bytes, 0, kTiB,
     "free disk space below which writing stops"},
    {"disk-high-percent", &ServerConfig::disk_high_percent, 0, 99,
     "fill of the disk less --min-free-bytes from which on no payloads are "
     "taken but those that have begun: ranks wait or leave them out, by their "
     "policy; 0: never. A leaf's is 70"},
    {"disk-full-percent", &ServerConfig::disk_full_percent, 0, 100,
     "the same, from which on records of statistics alone are taken and "
     "payloads are refused at once; 0: never. A leaf's is 90"},
    {"index-cache-bytes", &ServerConfig::index_cache_bytes, 1 << 20, kTiB,
     "LevelDB block cache"},
    {"grpc-memory-bytes", &ServerConfig::grpc_memory_bytes, 32 << 20, kTiB,
     "memory gRPC may use for messages"},
    {"memory-bytes", &ServerConfig::memory_bytes, 0, kTiB,
     "memory of the process above which connections are cut; 0: what the "
     "other limits add up to, and 1 GiB"},
    {"worker-threads", &ServerConfig::worker_threads, 1, 256,
     "threads for queries and exports"},
    {"sync-interval-ms", &ServerConfig::sync_interval_ms, 1, 3600000,
     "longest time until what is committed is synced; 32 MiB are at once"},
    {"retention-hours", &ServerConfig::retention_hours, 0, 1000000,
     "steps older than this are deleted; 0 keeps them"},
    {"retention-bytes", &ServerConfig::retention_bytes, 0, kTiB * 1024,
     "bytes of segment files, rollups and summaries above which the oldest "
     "steps are deleted; 0 keeps them"},
    {"janitor-seconds", &ServerConfig::janitor_seconds, 1, 1000000,
     "interval between checks for data to delete"},
    {"seal-seconds", &ServerConfig::seal_seconds, 1, 3600,
     "for a leaf: interval between checks for steps that have ended"},
    {"seal-quiet-seconds", &ServerConfig::seal_quiet_seconds, 1, 1000000,
     "for a leaf: a step that receives nothing for this long is stored "
     "unfinished"},
    {"grace-seconds", &ServerConfig::grace_seconds, 0, 100000000,
     "for a janitor: time between the last use of an object and its removal; "
     "longer than any export takes"},
    {"merge-bytes", &ServerConfig::merge_bytes, 0, uint64_t{4} << 30,
     "for a janitor: sets smaller than half of this size are merged, 16 or "
     "more of one leaf into one; 0 merges none"},
    {"drain-seconds", &ServerConfig::drain_seconds, 0, 3600,
     "time after which a shutdown waits for queries no longer"},
};

// Values of --lean for limits that are not given. A frame may take a MiB, and
// 32 decoded; one is always accepted.
struct LeanKey {
  uint64_t ServerConfig::*field;
  uint64_t value;
};
constexpr LeanKey kLean[] = {
    {&ServerConfig::credit_bytes, 256 << 10},
    {&ServerConfig::pending_bytes, 8 << 20},
    {&ServerConfig::commit_batch_bytes, 512 << 10},
    {&ServerConfig::index_cache_bytes, 1 << 20},
    {&ServerConfig::grpc_memory_bytes, 32 << 20},
    {&ServerConfig::worker_threads, 2},
};
constexpr uint64_t kLeanIndexWriteBytes = 2 << 20;

void CheckNumber(const NumberKey& key, const std::string& text,
                 ServerConfig* config, ConfigFaults* faults) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < key.min || value > key.max) {
    faults->Add(key.name, text,
                absl::StrCat("an integer ", key.min, "..", key.max));
    return;
  }
  config->*key.field = value;
}

// Parser of the file of --config, one JSON object, for CLI11, which fills in
// the flags that were not given. All faults of the file are added to `faults`.
class JsonConfig : public CLI::Config {
 public:
  JsonConfig(const CLI::App* app, ConfigFaults* faults)
      : app_(app), faults_(faults) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& file) const override {
    std::vector<CLI::ConfigItem> items;
    std::stringstream text;
    text << file.rdbuf();
    const std::string json = text.str();
    rapidjson::Document document;
    if (const absl::Status status = ParseConfigDocument(json, &document);
        !status.ok()) {
      faults_->AddText(
          absl::StrCat("config: ", app_->get_config_ptr()->as<std::string>(),
                       ": ", status.message()));
      return items;
    }
    ConfigReader reader(&document, "", faults_);
    const auto add = [&](const char* name, std::vector<std::string> inputs) {
      items.push_back({{}, name, std::move(inputs)});
    };
    for (const char* const name :
         {"listen", "data-dir", "port-file", "log-level", "role",
          "object-store", "root", "advertise"})
      if (const auto v = reader.String(name)) add(name, {*v});
    for (const TextKey& key : kTexts)
      if (const auto v = reader.String(key.name)) add(key.name, {*v});
    for (const char* const name :
         {"insecure", "compress-payloads", "free-stored", "no-lane", "lean"})
      if (const auto v = reader.Bool(name)) add(name, {*v ? "true" : "false"});
    for (const NumberKey& key : kNumbers)
      if (const auto* v = reader.Get(key.name)) add(key.name, {JsonText(*v)});
    if (reader.Has("metrics-port")) {
      if (const auto port = reader.Int("metrics-port", 0, 65535))
        add("metrics-port", {absl::StrCat(*port)});
    }
    if (std::vector<std::string> roots = reader.StringList("export-root");
        !roots.empty())
      add("export-root", std::move(roots));
    if (std::vector<std::string> values = reader.StringList("metrics-values");
        !values.empty())
      add("metrics-values", std::move(values));
    if (std::vector<std::string> names = reader.StringList("web-name");
        !names.empty())
      add("web-name", std::move(names));
    std::vector<std::string> known;
    for (const CLI::Option* const option : app_->get_options())
      for (const std::string& flag : option->get_lnames())
        known.push_back(flag);
    for (const std::string& name : reader.UnknownNames()) {
      faults_->Add(
          name, "this key",
          absl::StrCat("a known key (see --help)", DidYouMean(name, known)));
    }
    return items;
  }
  // CLI11 requires it; flags are never written to a file.
  std::string to_config(const CLI::App* app, bool defaults, bool descriptions,
                        std::string prefix) const override {
    return "";
  }

 private:
  const CLI::App* const app_;
  ConfigFaults* const faults_;
};

// Beyond loopback a collector must have encryption and authorization, or be
// started with --insecure.
void CheckPublic(const ServerConfig& config, ConfigFaults* faults) {
  if (config.tls_cert.empty() && !config.token_file.empty()) {
    faults->Add("token-file", config.token_file,
                "used with tls-cert: beyond loopback tokens would travel in "
                "plain text");
  } else if (config.insecure) {
    return;
  } else if (config.tls_cert.empty()) {
    faults->Add("listen", config.listen,
                "a loopback address, or --tls-cert and --tls-key, or "
                "--insecure: beyond loopback anybody could connect, without "
                "encryption");
  } else if (config.token_file.empty() && config.tls_client_ca.empty()) {
    faults->Add("listen", config.listen,
                "used with --token-file or --tls-client-ca, or --insecure: "
                "anybody could connect");
  }
}

// The page requires both as well, because tokens and archive need protection;
// --insecure only applies to ranks.
void CheckWeb(const ServerConfig& config, ConfigFaults* faults) {
  if (config.web_listen.empty()) {
    if (!config.web_names.empty())
      faults->Add("web-name", config.web_names[0], "given with web-listen");
    if (!config.web_root.empty())
      faults->Add("web-root", config.web_root, "given with web-listen");
    return;
  }
  if (!WebPage::CheckAddress(config.web_listen).ok()) {
    faults->Add("web-listen", config.web_listen,
                "ADDRESS:PORT with a port 0..65535 (IPv6 in brackets)");
    return;
  }
  const bool loopback =
      IsLoopbackHost(ParseHostPort(config.web_listen, 0)->host);
  if (!loopback && (config.tls_cert.empty() || config.token_file.empty())) {
    faults->Add(
        "web-listen", config.web_listen,
        "a loopback address, or used with --tls-cert, --tls-key and "
        "--token-file: beyond loopback the page requires TLS and tokens, "
        "with --insecure, too");
  } else if (!config.tls_client_ca.empty() && config.token_file.empty()) {
    faults->Add("web-listen", config.web_listen,
                "used with --token-file where --tls-client-ca is: a browser "
                "proves itself to the page by a token");
  }
  for (const std::string& name : config.web_names) {
    if (name.empty() || name.find_first_of(":/@ ,") != std::string::npos)
      faults->Add("web-name", name, "a name without scheme and port");
  }
}

// Checks the options with which a leaf and its root connect.
void CheckRoot(const ServerConfig& config, ConfigFaults* faults) {
  if (config.root.empty()) {
    for (const auto& [name, value] :
         {std::pair("advertise", config.advertise),
          std::pair("root-ca", config.root_ca),
          std::pair("root-token-file", config.root_token_file)})
      if (!value.empty()) faults->Add(name, value, "given with root");
    return;
  }
  if (config.role != "leaf")
    faults->Add("root", config.root, "given with role leaf");
  const absl::StatusOr<HostPort> root = ParseHostPort(config.root, 1);
  if (!root.ok()) {
    faults->Add("root", config.root, "HOST:PORT");
  } else if (!config.root_token_file.empty() && config.root_ca.empty() &&
             !IsLoopbackHost(root->host)) {
    faults->Add("root-token-file", config.root_token_file,
                "used with root-ca: beyond loopback the token would travel in "
                "plain text");
  }
  if (!config.advertise.empty() && !ParseHostPort(config.advertise, 1).ok())
    faults->Add("advertise", config.advertise, "HOST:PORT that ranks reach");
  if (config.advertise == config.root) {
    faults->Add("advertise", config.advertise,
                "an address of this leaf: with the root's, ranks would be "
                "redirected in a loop");
  }
  const absl::StatusOr<HostPort> listen = ParseHostPort(config.listen, 0);
  if (config.advertise.empty() && listen.ok() &&
      (listen->host == "0.0.0.0" || listen->host == "[::]")) {
    faults->Add("advertise", "nothing",
                "HOST:PORT that ranks reach, as listen names every address");
  }
}

void CheckRole(const ServerConfig& config, ConfigFaults* faults) {
  const bool leaf = config.role == "leaf";
  if (!leaf && config.role != "all" && config.role != "reader" &&
      config.role != "root" && config.role != "janitor") {
    faults->Add("role", config.role, "one of all, leaf, reader, root, janitor");
    return;
  }
  CheckRoot(config, faults);
  if (config.object_store.empty() != (config.role == "all")) {
    faults->Add(
        "object-store",
        config.object_store.empty() ? "nothing" : config.object_store,
        "given with role leaf, reader, root or janitor, and with them only");
  } else if (!config.object_store.empty()) {
    if (const absl::Status status =
            CheckObjectStoreUrl(config.object_store, ProcessEnvironment());
        !status.ok())
      faults->AddText(std::string(status.message()));
  }
  if (config.free_stored && !leaf)
    faults->Add("free-stored", "true", "given with role leaf");
  const bool retains = config.retention_hours > 0 || config.retention_bytes > 0;
  if (leaf && retains) {
    faults->Add("role", "leaf",
                "without retention-hours and retention-bytes, which delete "
                "what is not stored yet: use free-stored");
  } else if (retains && (config.role == "reader" || config.role == "root")) {
    faults->Add("role", config.role,
                "without retention-hours and retention-bytes: a janitor "
                "deletes what is in the store");
  }
}

void CheckDisk(const ServerConfig& config, ConfigFaults* faults) {
  if (config.disk_full_percent > 0 &&
      config.disk_high_percent >= config.disk_full_percent) {
    faults->Add("disk-high-percent", absl::StrCat(config.disk_high_percent),
                absl::StrCat("less than disk-full-percent, ",
                             config.disk_full_percent));
  }
}

void CheckListen(const ServerConfig& config, ConfigFaults* faults) {
  if (IsUnixAddress(config.listen)) {
    if (const auto address = ParseUnixAddress(config.listen); !address.ok())
      faults->AddText(absl::StrCat("listen: ", address.status().message()));
    if (config.role == "root" || !config.root.empty()) {
      faults->Add("listen", config.listen,
                  "HOST:PORT for a root and its leaves, which ranks of other "
                  "machines come to");
    }
    return;
  }
  const absl::StatusOr<HostPort> listen = ParseHostPort(config.listen, 0);
  if (!listen.ok()) {
    faults->Add("listen", config.listen,
                "HOST:PORT with a port 0..65535, or unix:PATH");
  } else if (!IsLoopbackHost(listen->host)) {
    CheckPublic(config, faults);
  }
}

void Check(const ServerConfig& config, ConfigFaults* faults) {
  CheckDisk(config, faults);
  CheckRole(config, faults);
  CheckWeb(config, faults);
  CheckListen(config, faults);
  if (config.tls_cert.empty() != config.tls_key.empty())
    faults->Add("tls-cert", "without its partner", "given with tls-key");
  if (!config.tls_client_ca.empty() && config.tls_cert.empty())
    faults->Add("tls-client-ca", config.tls_client_ca, "given with tls-cert");
  if (config.data_dir.empty())
    faults->Add("data-dir", "nothing", "a directory for the archive");
  for (const std::string& root : config.export_roots) {
    if (root.empty() || root[0] != '/')
      faults->Add("export-root", root, "an absolute path");
  }
  if (!config.metrics_values.empty() && config.metrics_port < 0)
    faults->Add("metrics-values", config.metrics_values[0],
                "given with metrics-port");
  for (const std::string& pattern : config.metrics_values) {
    if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
      faults->Add(
          "metrics-values", absl::StrCat(pattern.size(), " bytes"),
          absl::StrCat("a pattern of 1 to ", kMaxPatternBytes, " bytes"));
    }
  }
  if (config.log_level != "debug" && config.log_level != "info" &&
      config.log_level != "warning" && config.log_level != "error") {
    faults->Add("log-level", config.log_level,
                "one of debug, info, warning, error");
  }
}

}  // namespace

absl::StatusOr<ParsedCommandLine> ParseServerCommandLine(
    int argc, const char* const* argv) {
  ParsedCommandLine parsed;
  ServerConfig& config = parsed.config;
  // Parsed as texts, so that every fault is reported and not only the first.
  std::vector<std::string> numbers(std::size(kNumbers));
  ConfigFaults faults;
  const Manual manual = ServerManual();
  CLI::App app("receives what agents record, stores it and exports it",
               "rankprobed");
  UseHelp(manual, &app);
  app.set_version_flag("--version", absl::StrCat("rankprobed ", Version()),
                       "the version");
  app.add_option(
         "--listen", config.listen,
         "where to listen; port 0 takes a free one. unix:PATH is a Unix "
         "socket, for programs of this user and root on this machine")
      ->type_name("HOST:PORT");
  app.add_option("--data-dir", config.data_dir, "directory of the archive")
      ->type_name("DIR");
  app.add_option("--export-root", config.export_roots,
                 "directory below which server-side exports may go")
      ->type_name("DIR");
  app.add_option("--port-file", config.port_file,
                 "file that has the port while it serves, or the address of a "
                 "Unix socket")
      ->type_name("FILE");
  app.add_option("--log-level", config.log_level,
                 "debug, info, warning or error")
      ->type_name("LEVEL");
  app.add_option("--metrics-port", config.metrics_port,
                 "port for Prometheus, path /metrics; 0 takes a free one; "
                 "none if left out")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535));
  app.add_option("--metrics-values", config.metrics_values,
                 "with --metrics-port: Norm, Max, Min and Mean of these values "
                 "of connected ranks, at the newest step of each that has "
                 "ended; at most 1,000 values")
      ->type_name("PATTERN");
  app.add_option("--web-name", config.web_names,
                 "with --web-listen: a further name that browsers call this "
                 "machine by; those in --tls-cert are known")
      ->type_name("NAME");
  app.add_flag("--insecure", config.insecure,
               "allow listening beyond loopback without TLS or without tokens");
  app.add_flag("--compress-payloads", config.compress_payloads,
               "keep payload chunks that zstd makes at least a tenth smaller "
               "compressed");
  app.add_flag("--no-lane", config.no_lane,
               "take no payloads through shared memory from ranks on this host "
               "(docs/security.md)");
  app.add_flag("--lean", config.lean,
               "of a collector beside ranks: tens of MiB of memory in place of "
               "hundreds, by smaller limits where they are not given, and "
               "slower where many ranks record all they can (docs/scale.md)");
  app.add_option("--role", config.role,
                 "all: an archive of its own (the default); leaf: that, and "
                 "what has ended is stored in --object-store; reader: serves "
                 "what leaves have stored; root: that, and directs ranks to "
                 "their leaf; janitor: as a reader, and deletes and cleans "
                 "in --object-store by --retention-hours, --retention-bytes "
                 "and --grace-seconds")
      ->type_name("ROLE");
  app.add_option("--root", config.root,
                 "for a leaf: the root that sends it ranks (docs/scale.md)")
      ->type_name("HOST:PORT");
  app.add_option(
         "--advertise", config.advertise,
         "with --root: where ranks reach this leaf; that of --listen if "
         "left out")
      ->type_name("HOST:PORT");
  app.add_option("--object-store", config.object_store,
                 "where leaves store: s3://BUCKET/PREFIX or the absolute path "
                 "of a directory (docs/scale.md)")
      ->type_name("URL");
  app.add_flag("--free-stored", config.free_stored,
               "for a leaf: stored steps are deleted here once their "
               "run is 64 steps further");
  app.add_option("--job-dir", config.job_dir,
                 "directory of a job (dump_path/.rankprobe/collector-*): start "
                 "only where it is, and end when no process uses it")
      ->type_name("DIR");
  app.add_flag("--rebuild-index", config.rebuild_index,
               "make the index of --data-dir again from its segments and from "
               "what can still be read of it, say what was found, and end");
  for (const TextKey& key : kTexts) {
    app.add_option(absl::StrCat("--", key.name), config.*key.field, key.help)
        ->type_name(key.field == &ServerConfig::web_root ? "DIR" : "FILE");
  }
  app.set_config("--config", "", "JSON file with the same keys; flags beat it")
      ->type_name("FILE");
  app.config_formatter(std::make_shared<JsonConfig>(&app, &faults));
  const ServerConfig defaults;
  for (size_t i = 0; i < std::size(kNumbers); ++i) {
    app.add_option(absl::StrCat("--", kNumbers[i].name), numbers[i],
                   absl::StrCat(kNumbers[i].help, " (",
                                defaults.*kNumbers[i].field, ")"))
        ->type_name("NUMBER");
  }
  if (const auto text = WrittenHelp(argc, argv, app, manual)) {
    RP_RETURN_IF_ERROR(text->status());
    std::fputs((*text)->c_str(), stdout);
    parsed.exit = true;
    return parsed;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    parsed.exit = true;
    parsed.exit_code = app.exit(success);
    return parsed;
  } catch (const CLI::FileError& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(error.what(), " (see --help)"));
  } catch (const CLI::ParseError& error) {
    const std::optional<std::string> unknown = UnknownFlag(app, "");
    if (unknown.has_value())
      return absl::InvalidArgumentError(
          absl::StrCat(*unknown, " (see --help)"));
    faults.Add("command line", error.what(), "the flags of --help");
  }
  for (size_t i = 0; i < std::size(kNumbers); ++i) {
    if (!numbers[i].empty())
      CheckNumber(kNumbers[i], numbers[i], &config, &faults);
  }
  const auto given = [&](uint64_t ServerConfig::*field) {
    for (size_t i = 0; i < std::size(kNumbers); ++i)
      if (kNumbers[i].field == field) return !numbers[i].empty();
    return false;
  };
  if (config.lean) {
    for (const LeanKey& key : kLean)
      if (!given(key.field)) config.*key.field = key.value;
    config.index_write_bytes = kLeanIndexWriteBytes;
  }
  if (config.role == "leaf") {
    if (!given(&ServerConfig::disk_full_percent))
      config.disk_full_percent = kLeafDiskFullPercent;
    if (!given(&ServerConfig::disk_high_percent)) {
      config.disk_high_percent = kLeafDiskHighPercent;
      // If only one of the two is given, the default of the other is adapted.
      if (config.disk_full_percent > 0) {
        config.disk_high_percent =
            std::min(config.disk_high_percent, config.disk_full_percent - 1);
      }
    }
  }
  Check(config, &faults);
  RP_RETURN_IF_ERROR(faults.ToStatus());
  return parsed;
}

}  // namespace rankprobe
