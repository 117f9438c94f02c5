// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/collector_finder.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/host_port.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

// A collector that does not answer within this time will not answer other
// requests either.
constexpr absl::Duration kAnswerTime = absl::Seconds(3);
constexpr absl::Duration kLook = absl::Milliseconds(200);
constexpr size_t kMaxFailed = 16;

}  // namespace

struct CollectorFinder::Question {
  grpc::ClientContext context;
  v1::FindCollectorRequest request;
  v1::FoundCollector answer;
  absl::Mutex mutex;
  // Notified when `over` is set.
  MonotonicCondVar ended;
  bool over ABSL_GUARDED_BY(mutex) = false;
  grpc::Status status ABSL_GUARDED_BY(mutex);

  bool IsOver() {
    absl::MutexLock lock(&mutex);
    return over;
  }
};

absl::StatusOr<std::string> CollectorFinder::Find(
    const v1::Identity& identity) {
  if (is_plain_) return std::string();
  if (failing_since_ != kNeverFails && Since(failing_since_) >= patience_ &&
      std::find(failed_.begin(), failed_.end(), leaf_) == failed_.end()) {
    if (failed_.size() >= kMaxFailed) failed_.erase(failed_.begin());
    failed_.push_back(leaf_);
  }
  Question question;
  *question.request.mutable_identity() = identity;
  question.request.set_replica(replica_);
  for (const std::string& leaf : failed_) question.request.add_failed(leaf);
  AddToken(security_, &question.context);
  channel_->FindCollector(&question.context, &question.request,
                          &question.answer,
                          [this, &question](const grpc::Status& status) {
                            // Under the lock: once it is released, `question`
                            // may be destroyed.
                            absl::MutexLock lock(&question.mutex);
                            question.status = status;
                            question.over = true;
                            question.ended.NotifyAll();
                            wake_();
                          });
  const MonotonicTime end = MonotonicAfter(kAnswerTime);
  bool stopping = false;
  while (!question.IsOver() && MonotonicNow() < end && !stopping)
    stopping = !wait_(kLook);
  question.context.TryCancel();
  grpc::Status status;
  {
    absl::MutexLock lock(&question.mutex);
    question.ended.Wait(
        &question.mutex,
        [&question]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return question.over; });
    status = question.status;
  }
  if (stopping) return absl::CancelledError("the session stops");
  const v1::FoundCollector& answer = question.answer;
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      is_root_ = true;
      if (!ParseHostPort(answer.address(), /*min_port=*/1).ok() ||
          answer.leaf().size() > 64) {
        return absl::UnavailableError(
            "the root names a leaf that is not a HOST:PORT");
      }
      if (answer.leaf() != leaf_ || answer.address() != address_)
        failing_since_ = kNeverFails;
      leaf_ = answer.leaf();
      address_ = answer.address();
      return address_;
    case grpc::StatusCode::UNIMPLEMENTED:
      is_plain_ = !is_root_;
      return std::string();
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      is_root_ = true;
      // The failed leaves may be the only remaining ones.
      failed_.clear();
      return absl::UnavailableError(
          absl::StrCat("the root: ", FromGrpc(status).message()));
    default:
      break;
  }
  if (!is_root_) return std::string();
  // The leaf continues without its root.
  if (!address_.empty() && failing_since_ == kNeverFails) return address_;
  return absl::UnavailableError(absl::StrCat(
      "the root does not say which leaf: ", FromGrpc(status).message()));
}

void CollectorFinder::NoteReached() {
  failing_since_ = kNeverFails;
  failed_.clear();
}

void CollectorFinder::NoteNotReached() {
  if (failing_since_ == kNeverFails) failing_since_ = MonotonicNow();
  // Another collector may now listen at this address.
  is_plain_ = false;
}

}  // namespace rankprobe
