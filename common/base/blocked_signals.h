// SPDX-License-Identifier: Apache-2.0
// While it lives, a thread that its maker starts is born with all signals
// blocked, and so are those that that one starts. Of a program that is watched:
// a signal that the program has blocked stays pending for its sigwait() only
// while no thread takes it.
#ifndef RANKPROBE_COMMON_BASE_BLOCKED_SIGNALS_H_
#define RANKPROBE_COMMON_BASE_BLOCKED_SIGNALS_H_

#include <csignal>
#include <initializer_list>

namespace rankprobe {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    // What a fault of the thread itself raises, and it cannot wait for.
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
      sigdelset(&all, own);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_BLOCKED_SIGNALS_H_
