// SPDX-License-Identifier: Apache-2.0
// Client side of the checksums of answers: a damaged answer is not used, and
// its call ends with DATA_LOSS. Requests and answers are checked as they are
// read (checked_message.h); a channel also needs WatchForDamage, because
// gRPC treats an answer that cannot be read as the end of a stream.
//
// Thread-safe.
#ifndef RANKPROBE_COMMON_RPC_DAMAGED_ANSWERS_H_
#define RANKPROBE_COMMON_RPC_DAMAGED_ANSWERS_H_

#include <grpcpp/support/client_interceptor.h>
#include <grpcpp/support/status.h>

#include <memory>

namespace rankprobe {

std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>
WatchForDamage();

// The status of a call whose answer was damaged.
grpc::Status DamagedAnswer();
// The answer was damaged: the call may have been executed.
bool AnswerWasDamaged(const grpc::Status& status);
// The request was damaged and the call not executed, or the other side does not
// implement the call.
bool RequestMayBeDamaged(const grpc::Status& status);

// The established connection ended before the answer was complete: the call may
// have been executed.
bool ConnectionEnded(const grpc::Status& status);
// The other side has not acknowledged a ping (PingWhileCalling).
bool OtherSideIsSilent(const grpc::Status& status);

// Makes a call that only reads; repeats it once if something was damaged or the
// connection ended.
template <typename Call>
grpc::Status AskAgain(const Call& call) {
  const grpc::Status status = call();
  return AnswerWasDamaged(status) || RequestMayBeDamaged(status) ||
                 ConnectionEnded(status)
             ? call()
             : status;
}

// Makes a call that has effects; repeats it once only if it was not executed.
template <typename Call>
grpc::Status ActAgain(const Call& call) {
  const grpc::Status status = call();
  return RequestMayBeDamaged(status) ? call() : status;
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_DAMAGED_ANSWERS_H_
