// SPDX-License-Identifier: Apache-2.0
// Daemon configuration: flags and a JSON file with the same keys.
#ifndef RANKPROBE_COLLECTOR_SERVER_SERVER_CONFIG_H_
#define RANKPROBE_COLLECTOR_SERVER_SERVER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

constexpr uint64_t kLeafDiskHighPercent = 70;
constexpr uint64_t kLeafDiskFullPercent = 90;

struct ServerConfig {
  std::string listen = "127.0.0.1:7411";
  std::string data_dir;
  std::vector<std::string> export_roots;
  std::string port_file;
  std::string log_level = "info";
  bool insecure = false;
  bool compress_payloads = false;
  // Options that are not given have the defaults of a collector that runs next
  // to ranks, and freed memory is returned to the system.
  bool lean = false;
  // Size of LevelDB's table in memory; there are two at times.
  uint64_t index_write_bytes = 16 << 20;
  // Payloads of ranks on this host are sent in frames, too.
  bool no_lane = false;
  // PEM files; see collector/auth/server_credentials.h.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string token_file;
  // Triggers for runs that have none of their own; JSON of a TriggerSpec.
  std::string trigger_file;
  uint64_t max_sessions = 4096;
  uint64_t credit_bytes = 16 << 20;
  uint64_t pending_bytes = uint64_t{512} << 20;
  uint64_t commit_batch_bytes = 8 << 20;
  uint64_t segment_bytes = uint64_t{1} << 30;
  uint64_t max_payload_bytes = uint64_t{64} << 30;
  uint64_t min_free_bytes = uint64_t{256} << 20;
  // Shares of the disk less min_free_bytes, from which on payloads are refused,
  // and from which on only records are taken; 0: never. The defaults of a leaf
  // are kLeafDiskHighPercent and kLeafDiskFullPercent.
  uint64_t disk_high_percent = 0;
  uint64_t disk_full_percent = 0;
  uint64_t index_cache_bytes = 64 << 20;
  uint64_t grpc_memory_bytes = uint64_t{1} << 30;
  // 0: the sum of the other limits plus 1 GiB.
  uint64_t memory_bytes = 0;
  uint64_t worker_threads = 4;
  uint64_t sync_interval_ms = 1000;
  uint64_t drain_seconds = 5;
  // On a private collector: the directory of its job; see job_watch.h.
  std::string job_dir;
  // 0: no limit.
  uint64_t retention_hours = 0;
  uint64_t retention_bytes = 0;
  uint64_t janitor_seconds = 60;
  // Rebuild the index and exit.
  bool rebuild_index = false;
  // 0 takes a free one, -1: none.
  int64_t metrics_port = -1;
  // Patterns for values whose newest statistics are among the metrics.
  std::vector<std::string> metrics_values;
  // An IPv4 address.
  std::string metrics_host = "127.0.0.1";
  // ADDRESS:PORT of the page for browsers; empty: none. See web_page.h.
  std::string web_listen;
  std::vector<std::string> web_names;
  // A directory that the page shows; empty: none.
  std::string web_root;
  // "all": has its own archive. "leaf": the same, and stores ended steps in the
  // object store. "reader": serves what leaves have stored, takes no data.
  // "root": the same, and assigns ranks to leaves. "janitor": serves as a
  // reader, and deletes and cleans in the object store.
  std::string role = "all";
  // See collector/object_store/open_object_store.h.
  std::string object_store;
  uint64_t seal_seconds = 10;
  uint64_t seal_quiet_seconds = 600;
  // On a janitor: time between the last need for an object and its removal.
  uint64_t grace_seconds = 86400;
  // Size of a merged set's objects; 0: nothing is merged.
  uint64_t merge_bytes = uint64_t{256} << 20;
  // A leaf deletes steps here once they are stored.
  bool free_stored = false;
  // On a leaf: HOST:PORT of its root; empty: none.
  std::string root;
  // HOST:PORT that ranks connect to; empty: that of `listen`.
  std::string advertise;
  // PEM certificates of the root's CA; empty: no TLS. The leaf's own
  // certificate is tls_cert.
  std::string root_ca;
  std::string root_token_file;
};

// The result of reading the command line.
struct ParsedCommandLine {
  ServerConfig config;
  // --help or --version was handled; exit with this code.
  bool exit = false;
  int exit_code = 0;
};

// INVALID_ARGUMENT lists every fault, one line each. Flags override the file.
absl::StatusOr<ParsedCommandLine> ParseServerCommandLine(
    int argc, const char* const* argv);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_SERVER_CONFIG_H_
