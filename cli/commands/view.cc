// SPDX-License-Identifier: Apache-2.0
// view: serves the page from this process to the browser on this machine.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/flags/numbers.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/io/file_system.h"
#include "common/io/scratch_directory.h"
#include "common/text/json_text.h"
#include "web/view_server.h"

namespace rankprobe {
namespace {

struct ViewFlags {
  uint16_t port = 0;
  bool no_open = false;
  std::string root;
  std::function<bool()> collector_given;
};

// Holds a run of the archive as a dump until it is no longer needed.
class FetchedRun final : public FetchedDump {
 public:
  static absl::StatusOr<std::unique_ptr<FetchedDump>> Fetch(
      const Globals& globals, const std::string& name, bool payloads,
      std::function<bool()> cancelled) {
    auto files = NewPosixFileSystem();
    RP_ASSIGN_OR_RETURN(DumpInput dump,
                        DumpInput::Open(files.get(), globals, name,
                                        {.payloads = payloads,
                                         .cancelled = std::move(cancelled),
                                         .is_for_output = false}));
    return std::unique_ptr<FetchedDump>(
        new FetchedRun(std::move(files), std::move(dump)));
  }
  const std::string& path() const override { return dump_.path(); }

 private:
  FetchedRun(std::unique_ptr<FileSystem> files, DumpInput dump)
      : files_(std::move(files)), dump_(std::move(dump)) {}

  const std::unique_ptr<FileSystem> files_;
  const DumpInput dump_;
};

bool HasDisplay() {
  for (const char* name : {"DISPLAY", "WAYLAND_DISPLAY"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return true;
  }
  return false;
}

// Asks the desktop to open a browser and ignores failures, since the address is
// printed, too. All users of the machine can read a process's arguments, so the
// browser is started with a private file that redirects to the address, instead
// of the address.
class Opener {
 public:
  Opener() = default;
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;
  ~Opener() {
    if (child_ > 0) ::waitpid(child_, nullptr, WNOHANG);
  }

  void Open(const std::string& address) {
    auto scratch = ScratchDirectory::Make(file_system_.get());
    if (!scratch.ok()) return;
    scratch_.emplace(*std::move(scratch));
    const std::string path = absl::StrCat(scratch_->path(), "/rankprobe.html");
    const std::string page = absl::StrCat(
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh "
        "content=\"0;url=",
        address, "\"><a href=\"", address, "\">rankprobe</a>\n");
    std::FILE* const file = std::fopen(path.c_str(), "wxe");
    if (file == nullptr) return;
    std::fwrite(page.data(), 1, page.size(), file);
    if (std::fclose(file) == 0) Spawn(path);
  }

 private:
  void Spawn(const std::string& path) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
    }
    // Ctrl-C is meant for this process only, and the child would inherit the
    // blocked signals.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
    std::string program = "xdg-open";
    std::string argument = path;
    char* const arguments[] = {program.data(), argument.data(), nullptr};
    if (::posix_spawnp(&child_, program.c_str(), &files, &attributes, arguments,
                       environ) != 0) {
      child_ = 0;
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }

  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  std::optional<ScratchDirectory> scratch_;
  pid_t child_ = 0;
};

// Jobs are commands of this program, run for the same user.
JobRunnerOptions JobsAs(const Globals& globals, bool has_collector) {
  JobRunnerOptions jobs;
  std::error_code unknown;
  jobs.program =
      std::filesystem::read_symlink("/proc/self/exe", unknown).string();
  if (!has_collector) {
    jobs.sources.runs = JobSources::Runs::kNone;
    return jobs;
  }
  jobs.globals = {
      absl::StrCat("--collector=", globals.collector),
      absl::StrCat("--timeout=", globals.timeout_seconds),
  };
  const ChannelSecurityFiles& files = globals.files;
  for (const auto& [name, value] :
       {std::pair<const char*, const std::string&>{"--tls-ca=", files.tls_ca},
        {"--tls-cert=", files.tls_cert},
        {"--tls-key=", files.tls_key},
        {"--tls-server-name=", files.tls_server_name},
        {"--token-file=", files.token_file}}) {
    if (!value.empty()) jobs.globals.push_back(absl::StrCat(name, value));
  }
  return jobs;
}

absl::Status View(const Globals& globals, const ViewFlags& flags) {
  if (!globals.object_store.empty()) {
    return absl::InvalidArgumentError(
        "rankprobe view asks a collector: start rankprobed --role reader "
        "--object-store URL, and name it with --collector");
  }
  // The signals that sigwaitinfo() waits for below, blocked before any thread
  // starts.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  GatewayOptions options;
  // A directory alone is looked at without a collector, unless one is named.
  if (flags.root.empty() || flags.collector_given() ||
      globals.collector_in_environment) {
    options.collector = globals.collector;
  }
  options.security = globals.security;
  options.timeout_seconds = globals.timeout_seconds;
  GraphOptions graphs;
  graphs.root = flags.root;
  const bool has_collector = !options.collector.empty();
  JobRunnerOptions jobs;  // without anything to read there are none
  if (has_collector || !flags.root.empty())
    jobs = JobsAs(globals, has_collector);
  if (has_collector) {
    graphs.fetch_run = [&globals](const std::string& name, bool payloads,
                                  std::function<bool()> cancelled) {
      return FetchedRun::Fetch(globals, name, payloads, std::move(cancelled));
    };
  }
  auto started = ViewServer::Start(flags.port, std::move(options),
                                   std::move(graphs), std::move(jobs));
  // NOT_FOUND concerns the directory of --root, the only one that is opened
  // here.
  if (absl::IsNotFound(started.status()))
    return absl::InvalidArgumentError(started.status().message());
  RP_RETURN_IF_ERROR(started.status());
  const std::unique_ptr<ViewServer> view = *std::move(started);
  if (globals.json) {
    PrintJson(absl::StrCat("{\"address\":", JsonString(view->address()), "}"));
  } else {
    Print(stdout, "%s\n", view->address());
  }
  std::fflush(stdout);
  Opener opener;
  if (!flags.no_open && HasDisplay()) opener.Open(view->address());
  // sigwaitinfo is interrupted when a stopped process continues (Ctrl-Z and fg,
  // a virtual machine that was frozen).
  while (::sigwaitinfo(&ends, nullptr) < 0) {
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterViewCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<ViewFlags>(
      "view",
      "serve the archive, graphs and dumps to a browser: runs, ranks, "
      "steps, values, switches (for a team: rankprobed --web-listen)",
      View);
  verb->add_option("--port", flags->port,
                   "the port of 127.0.0.1 to serve on; default: one that is "
                   "free")
      ->check(IntegerWithin(0, 65535));
  verb->add_flag("--no-open", flags->no_open,
                 "print the address and open no browser");
  verb->add_option("--root", flags->root,
                   "show the graph databases and dumps below DIR; without "
                   "--collector, those alone")
      ->type_name("DIR");
  flags->collector_given = [app = to.app(), verb = verb] {
    return app->count("--collector") + verb->count("--collector") > 0;
  };
}

}  // namespace rankprobe
