// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/grpc_reference.h"

#include <dlfcn.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "gtest/gtest.h"

namespace {

// Whether threads can be started, and how often that failed.
std::atomic<bool> no_threads{false};
std::atomic<int> not_started{0};

}  // namespace

// Replaces libc's, and simulates a limit of the process.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* options,
                              void* (*body)(void*), void* argument) {
  if (no_threads.load()) {
    ++not_started;
    return EAGAIN;
  }
  using Create =
      int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create =
      reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, options, body, argument);
}

namespace rankprobe {
namespace {

// Ends gRPC after it failed to start its second timer thread, which it does
// when a timer fires. `again`: threads can be started again at that time. Ends
// the process, with 0 if the state of the library is `usable`.
[[noreturn]] void EndAfterFailure(bool again, bool usable) {
  {
    const GrpcReference reference;
    grpc::CompletionQueue queue;
    no_threads.store(true);
    // An alarm that has expired at once needs no timer.
    while (not_started.load() == 0) {
      grpc::Alarm alarm;
      alarm.Set(
          &queue,
          std::chrono::system_clock::now() + std::chrono::milliseconds(20),
          nullptr);
      void* tag = nullptr;
      bool fired = false;
      queue.Next(&tag, &fired);
    }
    no_threads.store(!again);
    queue.Shutdown();
  }
  std::_Exit(GrpcReference::CheckUsable().ok() == usable ? 0 : 1);
}

class GrpcReferenceTest : public ::testing::Test {
 protected:
  // A forked child has no threads of gRPC.
  GrpcReferenceTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(GrpcReferenceTest, TheLastUserDoesNotWaitForAThreadThatIsNotThere) {
  EXPECT_EXIT(EndAfterFailure(/*again=*/true, /*usable=*/false),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(GrpcReferenceTest, TheLibraryStaysWhereNoThreadCanEndIt) {
  EXPECT_EXIT(EndAfterFailure(/*again=*/false, /*usable=*/true),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(GrpcReferenceTest, OtherwiseTheLibraryIsEndedAndUsedAgain) {
  for (int i = 0; i < 3; ++i) {
    {
      const GrpcReference reference;
      const grpc::CompletionQueue queue;
      EXPECT_TRUE(grpc_is_initialized());
    }
    EXPECT_FALSE(grpc_is_initialized());
    EXPECT_TRUE(GrpcReference::CheckUsable().ok());
  }
}

}  // namespace
}  // namespace rankprobe
