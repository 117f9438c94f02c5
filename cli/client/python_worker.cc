// SPDX-License-Identifier: Apache-2.0
#include "cli/client/python_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rankprobe {

absl::StatusOr<std::unique_ptr<PythonWorker>> PythonWorker::Start(
    const std::string& module, const std::vector<std::string>& arguments,
    absl::string_view needs, Input input) {
  const char* const chosen = std::getenv("RANKPROBE_PYTHON");
  std::vector<std::string> words = {
      chosen == nullptr || *chosen == '\0' ? "python3" : chosen, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words)
    pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);

  int ends[2] = {-1, -1};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (input == Input::kPipe) {
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      ::posix_spawn_file_actions_destroy(&actions);
      return absl::ResourceExhaustedError(
          absl::StrCat("pipe: ", std::strerror(errno)));
    }
    ::posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    // The worker reports itself why it ends; a write to it must not end this
    // process.
    ::signal(SIGPIPE, SIG_IGN);
  }
  pid_t pid = 0;
  const int fault = ::posix_spawnp(&pid, pointers[0], &actions, nullptr,
                                   pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (ends[0] >= 0) ::close(ends[0]);
  if (fault != 0) {
    if (ends[1] >= 0) ::close(ends[1]);
    return absl::InvalidArgumentError(
        absl::StrCat(words[0], ": ", std::strerror(fault), " (", needs,
                     "; RANKPROBE_PYTHON names it)"));
  }
  return std::unique_ptr<PythonWorker>(new PythonWorker(pid, ends[1]));
}

PythonWorker::~PythonWorker() { (void)Wait(); }

void PythonWorker::CloseInput() {
  if (input_ >= 0) ::close(input_);
  input_ = -1;
}

absl::Status PythonWorker::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(input_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::CancelledError(
          absl::StrCat("the worker stopped reading: ", std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> PythonWorker::Wait() {
  CloseInput();
  if (pid_ == 0) return absl::FailedPreconditionError("the worker has ended");
  const pid_t pid = pid_;
  pid_ = 0;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("waitpid: ", std::strerror(errno)));
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace rankprobe
