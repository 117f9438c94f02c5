// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scheduler.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKPROBE_SIM_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif
#endif

namespace rankprobe::sim {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr int64_t kEpochNanos = 1000'000'000'000;

// Who is being entered: makecontext takes no pointers.
Scheduler* entering = nullptr;
ucontext_t main_context;

uint64_t Fnv(uint64_t hash, absl::string_view text) {
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

struct Scheduler::Fiber {
  ucontext_t context;
  char* stack = nullptr;
  std::function<void()> body;
  uint64_t number = 0;
  bool over = true;
  // Who waits for its end.
  Fiber* joiner = nullptr;
  // Of the wait under way; what is older wakes nobody.
  uint64_t wait = 0;
  bool waits = false;
  const void* condition = nullptr;

  ~Fiber() {
    if (stack != nullptr) ::munmap(stack, kStackBytes);
  }
};

class Scheduler::Handle : public TimeSource::Thread {
 public:
  Handle(Scheduler* scheduler, Fiber* fiber)
      : scheduler_(scheduler), fiber_(fiber), number_(fiber->number) {}
  void Join() override {
    while (!fiber_->over && fiber_->number == number_) {
      fiber_->joiner = scheduler_->running_;
      scheduler_->running_->waits = true;
      scheduler_->GiveWay();
    }
  }

 private:
  Scheduler* const scheduler_;
  Fiber* const fiber_;
  const uint64_t number_;
};

Scheduler::Scheduler(uint64_t seed)
    : random_(seed * 2654435761u + 1), bytes_(seed * 40503u + 7) {
  TimeSource::SetForTest(this);
  RandomSource::SetForTest(this);
}

Scheduler::~Scheduler() {
  TimeSource::SetForTest(nullptr);
  RandomSource::SetForTest(nullptr);
}

MonotonicTime Scheduler::Now() {
  return MonotonicTime(std::chrono::nanoseconds(kEpochNanos + nanos_));
}

absl::Duration Scheduler::Between(absl::Duration from, absl::Duration to) {
  const int64_t span = absl::ToInt64Nanoseconds(to - from);
  return from + absl::Nanoseconds(static_cast<int64_t>(
                    Choose(static_cast<uint64_t>(std::max<int64_t>(span, 1)))));
}

void Scheduler::Fill(char* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(bytes_());
}

void Scheduler::Trace(absl::string_view line) {
  trace_hash_ = Fnv(trace_hash_ ^ static_cast<uint64_t>(nanos_), line);
  if (lines_ != nullptr)
    lines_->push_back(absl::StrCat(
        absl::FormatDuration(absl::Nanoseconds(nanos_)), " ", line));
}

void Scheduler::At(absl::Duration delay, std::function<void()> run) {
  queue_.push({nanos_ + std::max<int64_t>(absl::ToInt64Nanoseconds(delay), 0),
               order_++, std::move(run)});
}

void Scheduler::Enter() {
  Scheduler* const self = entering;
#ifdef RANKPROBE_SIM_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  for (;;) {
    Fiber* const fiber = self->running_;
    fiber->body();
    fiber->body = nullptr;
    fiber->over = true;
    --self->alive_;
    if (fiber->joiner != nullptr)
      self->Wake(std::exchange(fiber->joiner, nullptr), absl::ZeroDuration());
    self->free_.push_back(fiber);
    self->GiveWay();
  }
}

void Scheduler::SwitchTo(Fiber* fiber) {
  running_ = fiber;
  entering = this;
#ifdef RANKPROBE_SIM_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber->stack, kStackBytes);
#endif
  ::swapcontext(&main_context, &fiber->context);
#ifdef RANKPROBE_SIM_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  running_ = nullptr;
}

void Scheduler::GiveWay() {
  Fiber* const fiber = running_;
#ifdef RANKPROBE_SIM_ASAN
  void* fake = nullptr;
  // The thread's own stack: its bounds are asked for once.
  static thread_local const void* bottom = nullptr;
  static thread_local size_t size = 0;
  if (bottom == nullptr) {
    pthread_attr_t attributes;
    void* address = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &address, &size);
    pthread_attr_destroy(&attributes);
    bottom = address;
  }
  __sanitizer_start_switch_fiber(&fake, bottom, size);
#endif
  ::swapcontext(&fiber->context, &main_context);
#ifdef RANKPROBE_SIM_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void Scheduler::Wake(Fiber* fiber, absl::Duration delay) {
  const uint64_t wait = fiber->wait;
  At(delay, [this, fiber, wait] {
    if (!fiber->waits || fiber->wait != wait) return;
    fiber->waits = false;
    ++fiber->wait;
    if (fiber->condition != nullptr) {
      auto& others = waiting_[fiber->condition];
      others.erase(std::remove(others.begin(), others.end(), fiber),
                   others.end());
      if (others.empty()) waiting_.erase(fiber->condition);
      fiber->condition = nullptr;
    }
    Trace(absl::StrCat("fiber ", fiber->number));
    SwitchTo(fiber);
  });
}

std::unique_ptr<TimeSource::Thread> Scheduler::Start(
    std::function<void()> body) {
  Fiber* fiber = nullptr;
  if (free_.empty()) {
    pool_.push_back(std::make_unique<Fiber>());
    fiber = pool_.back().get();
    void* const stack =
        ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) std::abort();
    fiber->stack = static_cast<char*>(stack);
    ::getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = kStackBytes;
    ::makecontext(&fiber->context, &Scheduler::Enter, 0);
  } else {
    fiber = free_.back();
    free_.pop_back();
  }
  fiber->body = std::move(body);
  fiber->number = ++started_;
  fiber->over = false;
  fiber->joiner = nullptr;
  fiber->waits = true;
  ++alive_;
  Wake(fiber, Between(absl::ZeroDuration(), absl::Microseconds(200)));
  return std::make_unique<Handle>(this, fiber);
}

void Scheduler::WaitUntil(const void* condition,
                          std::unique_lock<std::mutex>* lock,
                          MonotonicTime until) {
  if (running_ == nullptr) {
    std::fprintf(stderr, "sim: an event waits\n");
    std::abort();
  }
  Fiber* const fiber = running_;
  fiber->waits = true;
  fiber->condition = condition;
  waiting_[condition].push_back(fiber);
  Wake(fiber, absl::FromChrono(until - Now()));
  lock->unlock();
  GiveWay();
  lock->lock();
}

void Scheduler::NotifyAll(const void* condition) {
  const auto it = waiting_.find(condition);
  if (it == waiting_.end()) return;
  const std::vector<Fiber*> fibers = std::move(it->second);
  waiting_.erase(it);
  for (Fiber* const fiber : fibers) {
    fiber->condition = nullptr;
    // Now and then the processor is another's.
    Wake(fiber, Chance(0.01)
                    ? Between(absl::Milliseconds(1), absl::Milliseconds(40))
                    : Between(absl::ZeroDuration(), absl::Microseconds(200)));
  }
}

void Scheduler::Sleep(absl::Duration time) {
  running_->waits = true;
  Wake(running_, time);
  GiveWay();
}

bool Scheduler::RunUntil(const std::function<bool()>& done,
                         absl::Duration limit) {
  const int64_t end = nanos_ + absl::ToInt64Nanoseconds(limit);
  while (!done()) {
    if (queue_.empty() || queue_.top().at > end) return false;
    Event event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    nanos_ = event.at;
    ++events_;
    event.run();
  }
  return true;
}

}  // namespace rankprobe::sim
