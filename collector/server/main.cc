// SPDX-License-Identifier: Apache-2.0
// rankprobed: parse, open, serve, drain. Exit codes are in --help.
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "collector/ingest/payload_scope.h"
#include "collector/object_store/open_object_store.h"
#include "collector/object_store/store_probe.h"
#include "collector/rpc/leaf_questions.h"
#include "collector/sealed/bucket_upkeep.h"
#include "collector/sealed/root_registry.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/united_reader.h"
#include "collector/server/job_watch.h"
#include "collector/server/process_memory.h"
#include "collector/server/protobuf_log.h"
#include "collector/server/server.h"
#include "collector/server/server_config.h"
#include "collector/server/store_janitor.h"
#include "collector/store/rebuild.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// The message may quote files and flags.
int Fail(int code, const std::string& message) {
  const std::string visible =
      absl::StrJoin(absl::StrSplit(message, '\n'), "\n",
                    [](std::string* out, absl::string_view line) {
                      out->append(VisibleText(line));
                    });
  std::fprintf(stderr, "rankprobed: %s\n", visible.c_str());
  return code;
}

Logger::Severity SeverityOf(const std::string& level) {
  if (level == "debug") return Logger::Severity::kDebug;
  if (level == "warning") return Logger::Severity::kWarning;
  if (level == "error") return Logger::Severity::kError;
  return Logger::Severity::kInfo;
}

// Reports an archive that cannot be opened, with what to do.
int FailToOpen(const std::string& data_dir, const absl::Status& status) {
  const std::string message =
      absl::StrCat("cannot use ", data_dir, ": ", status.message());
  if (absl::IsFailedPrecondition(status)) return Fail(3, message);
  return Fail(
      4,
      absl::IsDataLoss(status)
          ? absl::StrCat(message,
                         "; restore the directory from a backup, or "
                         "run `rankprobed --rebuild-index --data-dir ",
                         data_dir,
                         "` (copy the directory first), which makes the index "
                         "again from the segments and from the records that "
                         "can still be read")
          : message);
}

// Returns null for a collector that uses no object store. For all except
// readers, tests that the store is suitable.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjects(
    const ServerConfig& config, FileSystem* file_system, const Clock* clock,
    MonotonicEvent* ending) {
  if (config.object_store.empty()) return nullptr;
  ObjectStoreOptions options;
  options.url = config.object_store;
  // Only roles that store something create the directory: for the others a
  // missing directory is probably a misspelt name, not an empty store.
  options.make_directory = config.role != "reader" && config.role != "janitor";
  options.sleep = [ending](absl::Duration wait) {
    return !ending->WaitFor(wait);
  };
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<ObjectStore> objects,
      OpenObjectStore(options, ProcessEnvironment(), file_system, clock));
  // All other roles rely on create-if-absent.
  if (config.role != "reader") {
    RP_RETURN_IF_ERROR(ProbeObjectStore(objects.get(), ProbeOptions()));
  } else {
    // Checks that it exists, and that this process has access.
    RP_RETURN_IF_ERROR(objects->List("v1/", "", 1).status());
  }
  return objects;
}

// For a collector whose archive is in an object store: its data directory holds
// events and audit. The lock is held as long as the server runs.
absl::StatusOr<std::unique_ptr<FileLock>> LockDirectory(
    const std::string& directory, FileSystem* file_system) {
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(directory));
  return file_system->Lock(absl::StrCat(directory, "/LOCK"));
}

int Rebuild(const StoreOptions& options, FileSystem* file_system,
            const Clock* clock) {
  const absl::StatusOr<RebuildReport> report =
      RebuildIndex(options, file_system, clock, &StoredDigest);
  if (!report.ok()) return FailToOpen(options.data_dir, report.status());
  std::printf(
      "%s\n",
      absl::StrCat("rebuilt the index of ", options.data_dir, ": ",
                   report->runs, " runs, ", report->records, " records, ",
                   report->payloads, " payloads (", report->payloads_found,
                   " found again in the segments), ",
                   report->incomplete_payloads, " incomplete, ",
                   report->damaged_places, " damaged places")
          .c_str());
  for (const std::string& place : report->damaged)
    std::printf("damaged: %s\n", place.c_str());
  return 0;
}

// Ends the process if a call is left: what was received is saved, and
// destructors would wait for the call.
void ShutDown(Server* server) {
  if (!server->Shutdown()) std::_Exit(0);
}

// For a Unix socket the file contains its address.
void WritePortFile(const std::string& path, const Server& server) {
  if (path.empty()) return;
  std::ofstream(path) << (server.port() == 0 ? server.address()
                                             : absl::StrCat(server.port()))
                      << "\n";
}

// Waits until the process has to end, and returns why.
std::string AwaitEnd(const sigset_t& signals, JobWatch* job) {
  const timespec look{1, 0};
  while (true) {
    const int signal = job == nullptr
                           ? ::sigwaitinfo(&signals, nullptr)
                           : ::sigtimedwait(&signals, nullptr, &look);
    if (signal > 0) return absl::StrCat("signal ", signal);
    if (job == nullptr) continue;
    if (std::string over = job->Over(); !over.empty()) return over;
  }
}

// Handles signals while the process ends: a second one within a second is the
// same request (timeout(1) signals its child, and then the child's group); a
// later one ends the process at once. The signals are blocked in all threads.
class LaterSignal {
 public:
  explicit LaterSignal(const sigset_t& signals)
      : thread_([this, signals] { Wait(signals); }) {}
  ~LaterSignal() {
    over_.Set();
    thread_.join();
  }

 private:
  void Wait(const sigset_t& signals) {
    const timespec look{0, 50'000'000};
    const MonotonicTime until = MonotonicAfter(absl::Seconds(1));
    while (MonotonicNow() < until) {
      if (over_.WaitFor(absl::ZeroDuration())) return;
      ::sigtimedwait(&signals, nullptr, &look);
    }
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    while (!over_.WaitFor(absl::Hours(1))) {
    }
  }

  MonotonicEvent over_;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  KeepFreedMemory();
  // Files are created with 0640, directories with 0750.
  ::umask(0027);
  // Debian's build of Abseil checks for lock cycles at each lock, which is
  // slow.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const auto parsed = ParseServerCommandLine(argc, argv);
  if (!parsed.ok()) {
    return Fail(2, absl::StrReplaceAll(std::string(parsed.status().message()),
                                       {{"\n", "\nrankprobed: "}}));
  }
  if (parsed->exit) return parsed->exit_code;
  const ServerConfig& config = parsed->config;
  if (config.lean) GiveMemoryBackSoon();

  // Handled by sigwait below; blocked before any thread starts.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Declared first, so that it is active until everything below is closed.
  std::optional<LaterSignal> later;
  std::signal(SIGPIPE, SIG_IGN);

  const SystemClock clock;
  const Logger logger(STDERR_FILENO, SeverityOf(config.log_level), &clock);
  const ProtobufLog protobuf_log(&logger);
  std::unique_ptr<JobWatch> job;
  if (!config.job_dir.empty()) {
    auto opened = JobWatch::Open(config.job_dir, &clock);
    if (!opened.ok()) return Fail(4, std::string(opened.status().message()));
    job = *std::move(opened);
  }
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  StoreOptions options;
  options.data_dir = config.data_dir;
  options.segment_bytes = config.segment_bytes;
  // A size limit can only be kept to the granularity of a segment.
  if (config.retention_bytes > 0) {
    options.segment_bytes =
        std::min(config.segment_bytes,
                 std::max<uint64_t>(config.retention_bytes / 20, 1 << 20));
  }
  options.leveldb_cache_bytes = config.index_cache_bytes;
  options.leveldb_write_buffer_bytes = config.index_write_bytes;
  options.min_free_bytes = config.min_free_bytes;
  options.compress_payloads = config.compress_payloads;
  options.max_payload_bytes = config.max_payload_bytes;
  if (config.rebuild_index) return Rebuild(options, file_system.get(), &clock);
  // Set when the process has to end: pending retries of the store stop.
  MonotonicEvent ending;
  const absl::StatusOr<std::unique_ptr<ObjectStore>> objects =
      OpenObjects(config, file_system.get(), &clock, &ending);
  if (!objects.ok()) return Fail(6, std::string(objects.status().message()));
  const bool is_janitor = config.role == "janitor";
  const bool is_reader =
      is_janitor || config.role == "reader" || config.role == "root";
  SealedReader sealed(objects->get());
  std::unique_ptr<FileLock> lock;
  std::unique_ptr<PlanLog> plans;
  if (config.role == "root") {
    auto opened = PlanLog::Open(objects->get());
    if (!opened.ok()) return Fail(6, std::string(opened.status().message()));
    plans = *std::move(opened);
  }
  LeafQuestions questions(LeafQuestions::Options(), MonotonicNow());
  UnitedReader united(&sealed, &questions);
  ArchiveReader* reader = &sealed;
  if (config.role == "root") reader = &united;
  // A root may delete in its leaves' archive, and keeps plans.
  BucketUpkeep upkeep(objects->get(), &clock,
                      config.role == "root" ? BucketUpkeep::Deletion::kAllowed
                                            : BucketUpkeep::Deletion::kRefused);
  RootRegistry registry(plans.get());
  ServedArchive archive(reader, &upkeep,
                        plans == nullptr ? nullptr : &registry);
  RecoveryReport recovery;
  if (is_reader) {
    auto locked = LockDirectory(config.data_dir, file_system.get());
    if (!locked.ok()) return FailToOpen(config.data_dir, locked.status());
    lock = *std::move(locked);
  } else {
    auto store = Store::Open(options, file_system.get(), &clock);
    if (!store.ok()) return FailToOpen(config.data_dir, store.status());
    recovery = (*store)->recovery();
    archive = ServedArchive(*std::move(store));
  }
  logger.Info(
      "opened",
      {{"data_dir", config.data_dir},
       {"segments", absl::StrCat(recovery.segments)},
       {"torn_bytes_dropped", absl::StrCat(recovery.torn_bytes_dropped)},
       {"torn_payloads_removed", absl::StrCat(recovery.dangling_payloads)},
       {"damaged_payloads", absl::StrCat(recovery.damaged_payloads)}});
  if (recovery.lost_syncs > 0) {
    logger.Log(Logger::Severity::kWarning, "index_went_back",
               {{"lost_syncs", absl::StrCat(recovery.lost_syncs)},
                {"what_to_do",
                 "stored records are missing; restore a backup if they "
                 "matter; `rankprobe verify` says what is here"}});
  }
  // A janitor has no local archive in which to delete.
  ServerConfig served = config;
  if (is_janitor) served.retention_hours = served.retention_bytes = 0;
  auto server =
      Server::Start(served, std::move(archive), file_system.get(), &clock,
                    &logger, is_reader ? nullptr : objects->get(),
                    config.role == "root" ? &questions : nullptr);
  if (!server.ok()) {
    // These errors are caused by a file that a flag names, not by the port.
    const bool bad_file = absl::IsInvalidArgument(server.status()) ||
                          absl::IsFailedPrecondition(server.status());
    return Fail(bad_file ? 2 : 5, std::string(server.status().message()));
  }
  const std::string address = (*server)->address();
  std::printf("rankprobed listening on %s\n", VisibleText(address).c_str());
  if (const std::string page = (*server)->page_address(); !page.empty())
    std::printf("rankprobed serves its page on %s\n", page.c_str());
  std::fflush(stdout);
  WritePortFile(config.port_file, **server);

  CleanOptions clean;
  if (config.retention_hours > 0)
    clean.max_age = absl::Hours(config.retention_hours);
  clean.max_bytes = config.retention_bytes;
  clean.grace = absl::Seconds(config.grace_seconds);
  StoreCleaner cleaner(clean, objects->get(), &clock);
  MergeOptions merge;
  merge.directory = absl::StrCat(config.data_dir, "/merging");
  merge.bytes = config.merge_bytes;
  StoreMerger merger(merge, objects->get(), file_system.get(), &clock,
                     cleaner.logs());
  StoreJanitor janitor(absl::Seconds(config.janitor_seconds), &cleaner,
                       config.merge_bytes > 0 ? &merger : nullptr, &logger);
  if (is_janitor) janitor.Start();
  const std::string why = AwaitEnd(signals, job.get());
  // Removed first, because clients that read the port from now on would call a
  // collector that no longer answers.
  if (!config.port_file.empty())
    file_system->Delete(config.port_file).IgnoreError();
  logger.Info("draining", {{"reason", why}});
  later.emplace(signals);
  ending.Set();
  janitor.Stop();
  ShutDown(server->get());
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  try {
    return rankprobe::Main(argc, argv);
  } catch (const std::exception& error) {
    // Reached only if a library throws, or memory is exhausted.
    std::fprintf(stderr, "rankprobed: %s\n", error.what());
    return 5;
  }
}
