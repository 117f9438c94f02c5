// SPDX-License-Identifier: Apache-2.0
// Annotates absl::Mutex for ThreadSanitizer, because Debian's library was built
// without it and every guarded access would look like a race. Linked into
// programs of the tsan preset only. The functions here come before the
// library's own and call them.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
// Libraries built without the sanitizer, whose atomics it does not see.
const char* __tsan_default_suppressions() {
  return "race:libleveldb.so\n"
         "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libprotobuf.so\n"
         "race:libabsl_graphcycles_internal.so\n"
         "race:libabsl_time_zone.so\n";
}
}

namespace {

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// The library evaluates the conditions of waiting threads while it unlocks,
// after the release that we announce.
class Quiet {
 public:
  Quiet() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~Quiet() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

// NAME is the mangled tail behind absl::debian3::Mutex::.
#define REAL(signature, name) \
  static auto* const real = Real<signature>("_ZN4absl7debian35Mutex" name)

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  REAL(void(Mutex*), "4LockEv");
  {
    const Quiet quiet;
    real(this);
  }
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  REAL(void(Mutex*), "6UnlockEv");
  __tsan_release(this);
  const Quiet quiet;
  real(this);
}

bool Mutex::TryLock() {
  REAL(bool(Mutex*), "7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  REAL(void(Mutex*), "10ReaderLockEv");
  {
    const Quiet quiet;
    real(this);
  }
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  REAL(void(Mutex*), "12ReaderUnlockEv");
  __tsan_release(this);
  const Quiet quiet;
  real(this);
}

void Mutex::Await(const Condition& condition) {
  REAL(void(Mutex*, const Condition&), "5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    const Quiet quiet;
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  REAL(bool(Mutex*, const Condition&, Duration),
       "16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  bool met = false;
  {
    const Quiet quiet;
    met = real(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  REAL(bool(Mutex*, const Condition&, Time),
       "17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  bool met = false;
  {
    const Quiet quiet;
    met = real(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void Mutex::LockWhen(const Condition& condition) {
  REAL(void(Mutex*, const Condition&), "8LockWhenERKNS0_9ConditionE");
  {
    const Quiet quiet;
    real(this, condition);
  }
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
