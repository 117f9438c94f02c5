// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {
namespace {

constexpr int kTickMs = 500;
constexpr absl::Duration kStopGrace = absl::Seconds(5);
// After the process has ended, a process that it started may hold a pipe open
// for this long.
constexpr absl::Duration kPipeGrace = absl::Seconds(2);
constexpr int kNice = 10;

std::vector<std::string> Environment(const ChildOptions& options) {
  const std::vector<std::string>& variables = options.variables;
  std::vector<std::string> out = variables;
  const auto name_of = [](absl::string_view variable) {
    return variable.substr(0, variable.find('='));
  };
  for (char** at = environ; *at != nullptr; ++at) {
    const absl::string_view name = name_of(*at);
    if (options.clean_environment && name != "PATH" && name != "HOME" &&
        name != "LANG") {
      continue;
    }
    if (std::none_of(
            variables.begin(), variables.end(),
            [&](const std::string& one) { return name_of(one) == name; })) {
      out.emplace_back(*at);
    }
  }
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> out;
  out.reserve(texts->size() + 1);
  for (std::string& text : *texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Closes the sockets of the page's clients and of a collector's ranks, which
// the child must not keep open; not every library sets close-on-exec. This
// happens in the child, so that descriptors that other threads open at the same
// time are included.
void CloseOthers(posix_spawn_file_actions_t* files) {
#if __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(files, STDERR_FILENO + 1);
#else
  (void)files;
  std::error_code ignored;
  std::filesystem::directory_iterator at("/proc/self/fd", ignored);
  for (; at != std::filesystem::directory_iterator(); at.increment(ignored)) {
    int fd = -1;
    if (absl::SimpleAtoi(at->path().filename().string(), &fd) &&
        fd > STDERR_FILENO) {
      (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& program, const std::vector<std::string>& arguments,
    const ChildOptions& options) {
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    const absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("no pipe for a job: ", std::strerror(errno)));
    for (const int fd : {out[0], out[1]}) {
      if (fd >= 0) ::close(fd);
    }
    return status;
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY,
                                   0);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err[1], STDERR_FILENO);
  CloseOthers(&files);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t usual;
  sigemptyset(&usual);
  // A signal that this process ignores would also be ignored in the child.
  sigaddset(&usual, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF |
                                            POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = Environment(options);
  pid_t pid = 0;
  const int failed =
      ::posix_spawn(&pid, program.c_str(), &files, &attributes,
                    Pointers(&words).data(), Pointers(&environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  ::close(out[1]);
  ::close(err[1]);
  if (failed != 0) {
    ::close(out[0]);
    ::close(err[0]);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", program, ": ", std::strerror(failed)));
  }
  // A training may run on this machine.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), kNice);
  if (options.first_to_go) {
    std::ofstream(absl::StrCat("/proc/", pid, "/oom_score_adj")) << 1000;
  }
  for (const int fd : {out[0], err[0]}) (void)::fcntl(fd, F_SETFL, O_NONBLOCK);
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, out[0], err[0]));
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  {
    const absl::MutexLock lock(&mutex_);
    if (!ended_) ::waitpid(pid_, nullptr, 0);
    ended_ = true;
  }
  for (const int fd : fds_) {
    if (fd >= 0) ::close(fd);
  }
}

void ChildProcess::Signal(int signal) {
  const absl::MutexLock lock(&mutex_);
  // With the lock held the process is not waited for, so the id still belongs
  // to it. The negative id includes the processes that it started.
  if (!ended_) ::kill(-pid_, signal);
}

uint64_t ChildProcess::ResidentBytes() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/statm"));
  uint64_t size = 0;
  uint64_t resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void ChildProcess::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Signal(SIGTERM);
}

int ChildProcess::Wait(
    const std::function<void(bool error, absl::string_view)>& on_text,
    const std::function<void()>& tick) {
  std::optional<MonotonicTime> kill_at;
  std::optional<MonotonicTime> give_up_at;
  int status = 0;
  std::string buffer(64 << 10, '\0');
  // Ends when both pipes are closed and the process was waited for, or when the
  // grace period for open pipes is over.
  while (fds_[0] >= 0 || fds_[1] >= 0 || !give_up_at.has_value()) {
    pollfd polled[2] = {{fds_[0], POLLIN, 0}, {fds_[1], POLLIN, 0}};
    // If both pipes are closed, only the end of the process is awaited.
    (void)::poll(polled, 2, fds_[0] < 0 && fds_[1] < 0 ? 10 : kTickMs);
    for (int i = 0; i < 2; ++i) {
      if (fds_[i] < 0 || polled[i].revents == 0) continue;
      const ssize_t got = ::read(fds_[i], buffer.data(), buffer.size());
      if (got > 0) {
        on_text(i == 1, absl::string_view(buffer.data(), got));
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        ::close(fds_[i]);
        fds_[i] = -1;
      }
    }
    tick();
    if (!give_up_at.has_value()) {
      const absl::MutexLock lock(&mutex_);
      if (stopping_ && !kill_at.has_value())
        kill_at = MonotonicAfter(kStopGrace);
      if (kill_at.has_value() && Until(*kill_at) <= absl::ZeroDuration())
        ::kill(-pid_, SIGKILL);
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        give_up_at = MonotonicAfter(kPipeGrace);
      }
    } else if (Until(*give_up_at) <= absl::ZeroDuration()) {
      break;
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace rankprobe
