// SPDX-License-Identifier: Apache-2.0
// Scope in which the calling thread blocks all signals, so that the threads it
// starts, and those that they start, inherit the mask. A signal that the
// watched program has blocked for sigwait() would otherwise be delivered to a
// thread of rankprobe. Not shared between threads.
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
    // A fault in the thread itself raises these, and they cannot stay pending.
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
